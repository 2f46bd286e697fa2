# SPDX-License-Identifier: Apache-2.0
"""Train what drafts for the quickstart target on its own hidden states: Medusa heads and an EAGLE-3 net.

    python recipes/models/train_drafts.py --models recipes/models --prompts recipes/prompts/quickstart.jsonl \\
        --cache /tmp/continuations.pt

Reads `quickstart-target/`, writes `quickstart-medusa/` and `quickstart-eagle3/` in the layouts of the published
checkpoints, loads them back and reports how far their drafts are accepted, on the prompts and by Medusa tree.
The teacher is the target, the text mostly its own greedy continuations; `--cache` keeps those for the next run.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
from draft_nets import Eagle3Net, MedusaHeads
from draft_report import print_chains, print_ranks, print_trees, ranks_of
from safetensors.torch import load_file, save_file
from torch import nn
from train_quickstart import (
    BATCH,
    CONTINUATION_LEN,
    PROMPT_LEN,
    TRAIN_SEED,
    Batches,
    distillation_loss,
    greedy_continuations,
    optimise,
)
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

TRAIN_BLOCKS, HELD_OUT_BLOCKS, NEW_TOKENS = 40, 2, 128
ROWS, CORPUS_EVERY = 2 * BATCH, 4
STEP_WEIGHT = 0.8  # of a step's loss, relative to the one before: a draft counts only where those before it are right
MEDUSA_HEADS, EAGLE_STEPS = 4, 5
AUX_LAYERS, DRAFT_VOCAB, EAGLE_MLP = [1, 3, 4], 512, 768

Text = tuple[torch.Tensor, int]  # the tokens of a prompt and its answer, and how many of them are the prompt's


def continuations(target: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, cache: Path) -> list[torch.Tensor]:
    """Return blocks [rows, CONTINUATION_LEN] of document beginnings that the target went on from."""
    if not cache.exists():
        torch.save(greedy_continuations(target, tokenizer, TRAIN_BLOCKS + HELD_OUT_BLOCKS), cache)
    return torch.load(cache)


@torch.no_grad()
def answers(target: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast, prompts: Path) -> list[Text]:
    """Return each of the held-out prompts with the target's answer to it."""
    texts = []
    for line in prompts.read_text().splitlines():
        ids = tokenizer(json.loads(line)["prompt"], return_tensors="pt")["input_ids"]
        tokens = target.generate(ids, max_new_tokens=NEW_TOKENS, do_sample=False, pad_token_id=0)
        texts.append((tokens[0], ids.shape[1]))
    return texts


def frequent_tokens(own: torch.Tensor, held_out: torch.Tensor) -> torch.Tensor:
    """Return the DRAFT_VOCAB tokens that the target wrote most often, ascending; print how much of it they are."""
    kept = own[:, PROMPT_LEN:].flatten().bincount().topk(DRAFT_VOCAB).indices.sort().values
    share = torch.isin(held_out[:, PROMPT_LEN:], kept).float().mean()
    print(f"the draft vocabulary holds {share:.4%} of the held-out tokens", flush=True)
    return kept


class Rows:
    """An endless stream of [ROWS, CONTINUATION_LEN] tokens: the target's own, and corpus text now and then."""

    def __init__(self, own: torch.Tensor, corpus: Batches) -> None:
        self.own, self.corpus, self.taken = own, corpus, 0

    def next(self) -> torch.Tensor:
        self.taken += 1
        if self.taken % CORPUS_EVERY:
            return self.own[torch.randint(len(self.own), (ROWS,))]
        return self.corpus.next()[:, :-1].reshape(ROWS, CONTINUATION_LEN)


def distil(net: nn.Module, target: LlamaForCausalLM, rows: Rows, steps: int) -> None:
    """Train `net` to foresee the next-token distributions that the target will have at each of its drafting steps."""

    def loss_of() -> torch.Tensor:
        tokens = rows.next()
        with torch.no_grad():
            seen = target(input_ids=tokens, output_hidden_states=True)
        loss = torch.zeros(())
        for step, got in enumerate(net(tokens, seen.hidden_states)):
            wanted = seen.logits[:, step + 1 : step + 1 + got.shape[1], net.vocab]
            loss = loss + STEP_WEIGHT**step * distillation_loss(got, wanted)
        return loss

    optimise(net, loss_of, steps, 2e-3, type(net).__name__)


def medusa_config(target: LlamaConfig, name: str) -> dict[str, object]:
    return {
        "model_type": "medusa",
        "architectures": ["MedusaModel"],
        "base_model_name_or_path": name,
        "medusa_num_heads": MEDUSA_HEADS,
        "medusa_num_layers": 1,
        "hidden_size": target.hidden_size,
        "vocab_size": target.vocab_size,
        "torch_dtype": "bfloat16",
    }


def eagle3_config(target: LlamaConfig) -> dict[str, object]:
    same = ("model_type", "hidden_size", "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_act",
            "rms_norm_eps", "vocab_size", "max_position_embeddings", "bos_token_id", "eos_token_id")  # fmt: skip
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        **{key: getattr(target, key) for key in same},
        "num_hidden_layers": 1,
        "intermediate_size": EAGLE_MLP,
        "draft_vocab_size": DRAFT_VOCAB,
        "rope_theta": target.rope_parameters["rope_theta"],
        "attention_bias": False,
        "tie_word_embeddings": False,
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": AUX_LAYERS, "use_aux_hidden_state": True},
        "torch_dtype": "bfloat16",
    }


def save(net: nn.Module, config: dict[str, object], file: Path) -> None:
    """Write the tensors of `net` to `file`, in bf16 where they are not ids, and `config` beside it."""
    file.parent.mkdir(exist_ok=True)
    state = {name: t.to(torch.bfloat16) if t.is_floating_point() else t for name, t in net.state_dict().items()}
    save_file(state, file, metadata={"format": "pt"})
    (file.parent / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--medusa-steps", type=int, default=1200, help="0 takes the heads that are there")
    parser.add_argument("--eagle3-steps", type=int, default=1200, help="0 takes the net that is there")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    place = arguments.models / "quickstart-target"
    tokenizer = PreTrainedTokenizerFast.from_pretrained(place)
    target = LlamaForCausalLM.from_pretrained(place, dtype=torch.float32).eval().requires_grad_(False)
    blocks = continuations(target, tokenizer, arguments.cache)
    own, held_out = torch.cat(blocks[:-HELD_OUT_BLOCKS]), torch.cat(blocks[-HELD_OUT_BLOCKS:])
    rows, texts = Rows(own, Batches(tokenizer, TRAIN_SEED + 300)), answers(target, tokenizer, arguments.prompts)

    heads = MedusaHeads(target.lm_head.weight, MEDUSA_HEADS)
    file = arguments.models / "quickstart-medusa" / "medusa_lm_head.safetensors"
    if arguments.medusa_steps:
        distil(heads, target, rows, arguments.medusa_steps)
        save(heads, medusa_config(target.config, place.name), file)
    heads.load_state_dict(load_file(file))
    report_heads(heads, target, texts, held_out)

    net = eagle3_net(target, frequent_tokens(own, held_out))
    file = arguments.models / "quickstart-eagle3" / "model.safetensors"
    if arguments.eagle3_steps:
        distil(net, target, rows, arguments.eagle3_steps)
        save(net, eagle3_config(target.config), file)
    net.load_state_dict(load_file(file))
    report(net, target, texts)


def eagle3_net(target: LlamaForCausalLM, target_ids: torch.Tensor) -> Eagle3Net:
    """Return a new net over the target's AUX_LAYERS, of the target's shape but for the width of its MLP."""
    shape = LlamaConfig(**target.config.to_diff_dict() | {"intermediate_size": EAGLE_MLP})
    return Eagle3Net(shape, AUX_LAYERS, target, target_ids, EAGLE_STEPS)


def report(net: nn.Module, target: LlamaForCausalLM, texts: list[Text]) -> list[torch.Tensor]:
    """Print how far the drafts of `net` are right on `texts`; return the ranks that say so."""
    print(f"{type(net).__name__} on the answers to the prompts")
    ranks = [ranks_of(net, target, *text) for text in texts]
    print_ranks(ranks)
    print_chains(ranks)
    return ranks


def report_heads(heads: MedusaHeads, target: LlamaForCausalLM, texts: list[Text], held_out: torch.Tensor) -> None:
    """Print that, and what the trees grown on `held_out` continuations bring on `texts`."""
    ranks = report(heads, target, texts)
    print_trees(ranks, grown_on=[ranks_of(heads, target, row, PROMPT_LEN) for row in held_out])


if __name__ == "__main__":
    main()
