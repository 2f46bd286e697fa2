# SPDX-License-Identifier: Apache-2.0
"""Train a drafter for the quickstart target on the target's hidden states: one of the nets of draft_kinds.py.

    python recipes/models/train_drafts.py eagle3 --models recipes/models \\
        --prompts recipes/prompts/quickstart.jsonl --cache /tmp/continuations.pt --steps 500

Reads `quickstart-target/`; writes `quickstart-eagle3/` and so on in the layout of the published checkpoints, loads it
back and reports how far its drafts are accepted on the answers to the prompts: chains, and trees of several sizes that
were grown on continuations kept from the training.
The teacher is the target, the text mostly its own greedy continuations; `--cache` keeps those for the next run.
On one busy core each, 500 steps took 11 minutes for Medusa's heads and 18 for EAGLE-3's net, 450 steps 8 minutes for
the recurrent drafter and 14 for EAGLE's net; writing the continuations took 8 on two cores.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import torch
import torch.nn.functional as F
from draft_kinds import FILES, KINDS
from draft_report import print_chains, print_coverage, print_ranks, print_trees, ranks_of
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
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

TRAIN_BLOCKS, HELD_OUT_BLOCKS, NEW_TOKENS = 40, 2, 128
CORPUS_EVERY = 4
STEP_WEIGHT = 0.8  # of a step's loss, relative to the one before: a draft counts only where those before it are right

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


class Rows:
    """An endless stream of [BATCH, CONTINUATION_LEN] tokens: the target's own, and corpus text now and then."""

    def __init__(self, own: torch.Tensor, corpus: Batches) -> None:
        self.own, self.corpus, self.taken = own, corpus, 0

    def next(self) -> torch.Tensor:
        self.taken += 1
        if self.taken % CORPUS_EVERY:
            return self.own[torch.randint(len(self.own), (BATCH,))]
        return self.corpus.next()[:, :CONTINUATION_LEN]


def distil(net: nn.Module, target: LlamaForCausalLM, rows: Rows, steps: int) -> None:
    """Train `net` to foresee the next-token distributions that the target will have at each of its drafting steps."""

    def loss_of() -> torch.Tensor:
        tokens = rows.next()
        with torch.no_grad():
            seen = target(input_ids=tokens, output_hidden_states=True)
            wanted = F.log_softmax(seen.logits[..., net.vocab].float(), -1)
        losses = [
            STEP_WEIGHT**step * distillation_loss(got, wanted[:, step + 1 : step + 1 + got.shape[1]])
            for step, got in enumerate(net(tokens, seen.hidden_states))
        ]
        return torch.stack(losses).sum()

    optimise(net, loss_of, steps, 2e-3, type(net).__name__)


def save(net: nn.Module, config: dict[str, object], file: Path) -> None:
    """Write the tensors of `net` to `file`, in bf16 unless they are ids, and `config` next to it."""
    file.parent.mkdir(exist_ok=True)
    state = {name: t.to(torch.bfloat16) if t.is_floating_point() else t for name, t in net.state_dict().items()}
    save_file(state, file, metadata={"format": "pt"})
    (file.parent / "config.json").write_text(json.dumps(config, indent=2) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("net", choices=KINDS)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=500, help="0 reports on the net that is there")
    arguments = parser.parse_args()
    torch.manual_seed(0)
    place = arguments.models / "quickstart-target"
    tokenizer = PreTrainedTokenizerFast.from_pretrained(place)
    target = LlamaForCausalLM.from_pretrained(place, dtype=torch.float32).eval().requires_grad_(False)
    blocks = continuations(target, tokenizer, arguments.cache)
    own, held_out = torch.cat(blocks[:-HELD_OUT_BLOCKS]), torch.cat(blocks[-HELD_OUT_BLOCKS:])
    net, config = KINDS[arguments.net](target, own)
    file = arguments.models / f"quickstart-{arguments.net}" / FILES[arguments.net]
    if arguments.steps:
        distil(net, target, Rows(own, Batches(tokenizer, TRAIN_SEED + 300)), arguments.steps)
        save(net, config, file)
    net.load_state_dict(load_file(file))
    ranks = [ranks_of(net, target, *text) for text in answers(target, tokenizer, arguments.prompts)]
    print_coverage(net, target.config.vocab_size, held_out[:, PROMPT_LEN:])
    print_ranks(ranks)
    print_chains(ranks)
    print_trees(ranks, grown_on=[ranks_of(net, target, row, PROMPT_LEN) for row in held_out])


if __name__ == "__main__":
    main()
