# SPDX-License-Identifier: Apache-2.0
"""Compare a draft model that has its own tokenizer with one that has the target's.

    python benchmarks/other_vocabulary.py [--steps 300] [--prompts 32] [--max-tokens 64] [--out FILE.json]

Claim: with equal training it yields nearly as many tokens per step, and greedy texts are the target's. Two drafts of
the quickstart draft's shape are trained on the same texts: one with the quickstart's tokenizer, one with a smaller
byte-level BPE that was trained on other documents and merges digits. The metric is tokens per target pass, so load on
the machine does not matter.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import torch.nn.functional as F
from machine import environment
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "recipes" / "models"))

from corpus import documents
from train_quickstart import EOS, TRAIN_SEED, Batches, optimise, save

ROOT = Path(__file__).resolve().parents[1]
MODELS = ROOT / "recipes" / "models"
OTHER_SIZE, OTHER_SEED, DRAFT_LEN = 700, 7, 5
Metrics = dict[str, Any]


def other_tokenizer() -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=OTHER_SIZE, special_tokens=[EOS], initial_alphabet=alphabet)
    tokenizer.train_from_iterator((text for _, text in islice(documents(OTHER_SEED), 3000)), trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=EOS, clean_up_tokenization_spaces=False)


def train(tokenizer: PreTrainedTokenizerFast, steps: int, label: str) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig.from_pretrained(MODELS / "quickstart-draft", vocab_size=len(tokenizer), dtype="float32")
    model, batches = LlamaForCausalLM(config), Batches(tokenizer, TRAIN_SEED + 100)

    def loss_of() -> Tensor:
        block = batches.next()
        return F.cross_entropy(model(input_ids=block[:, :-1]).logits.float().flatten(0, 1), block[:, 1:].flatten())

    optimise(model, loss_of, steps, 4e-3, label)
    return model


def ours(draft: Path, out: Path, texts: list[str], max_tokens: int) -> Metrics:
    """Build a pair with the command, and count its engine's tokens and steps."""
    from trtspec.bench.artifact import open_artifact
    from trtspec.checkpoints.translation import read_vocab_mapping
    from trtspec.engine.generation.request import SamplingOptions

    command = [sys.executable, "-m", "trtspec", "build", "quickstart", "--out", str(out),
               "--set", f"speculation.draft.model={draft}", "--set", f"speculation.draft_len={DRAFT_LEN}"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=3600)
    if done.returncode:
        sys.exit(done.stderr)
    sizes = [
        json.loads((root / "config.json").read_text())["vocab_size"] for root in (MODELS / "quickstart-target", draft)
    ]
    translation = read_vocab_mapping(out / "checkpoints" / "draft", *sizes)
    with open_artifact(out) as artifact:
        ways: dict[str, Metrics] = {
            "alone": {"draft_len": 0},
            "greedy": {},
            "sampled": {"sampling": SamplingOptions(1.0, seed=1)},
        }
        said = {
            name: [artifact.engine.generate([artifact.request(text, max_tokens, **how)])[0] for text in texts]
            for name, how in ways.items()
        }
    same = sum(one.ids == other.ids for one, other in zip(said["alone"], said["greedy"], strict=True))
    found = {"shared": len(translation.target_ids) if translation else sizes[0], "same_texts": same}
    return found | {name: counted(said[name]) for name in ("greedy", "sampled")}


def counted(results: list[Any]) -> Metrics:
    drafted, accepted, steps = (
        sum(getattr(each.stats, key) for each in results) for key in ("drafted", "accepted", "steps")
    )
    tokens = sum(len(each.ids) for each in results)
    return {"tokens_per_pass": round(tokens / (steps + len(results)), 3), "accepted": round(accepted / drafted, 3)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--prompts", type=int, default=32)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    lines = (ROOT / "recipes" / "prompts" / "quickstart.jsonl").read_text().splitlines()
    texts = [json.loads(line)["prompt"] for line in lines][: asked.prompts]
    makers: dict[str, Callable[[], PreTrainedTokenizerFast]] = {
        "the target's tokenizer": lambda: AutoTokenizer.from_pretrained(MODELS / "quickstart-target"),
        "a tokenizer of its own": other_tokenizer,
    }
    results: dict[str, Metrics] = {}
    with TemporaryDirectory() as work:
        for number, (name, make) in enumerate(makers.items()):
            tokenizer, draft = make(), Path(work) / f"draft{number}"
            save(train(tokenizer, asked.steps, name), tokenizer, draft)
            results[name] = ours(draft, Path(work) / f"built{number}", texts, asked.max_tokens)
    for name, found in results.items():
        print(f"{name:<26}{found}")
    if asked.out:
        document = {"environment": environment(), "prompts": len(texts), "steps": asked.steps, "results": results}
        asked.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
