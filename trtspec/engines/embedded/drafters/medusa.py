# SPDX-License-Identifier: Apache-2.0
"""Medusa heads draft a whole tree at once, from the hidden state of the last token that the target has taken in.

All heads together are one matrix product a block, and one lookup puts what they rank in its places in the tree.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from trtspec.checkpoint.rules import Rule
from trtspec.engines.embedded.decoder import FINAL, Decoder
from trtspec.engines.embedded.drafters.base import Draft, Drafter, Outcome, Sampling, Setup
from trtspec.engines.embedded.joining import join
from trtspec.kernels.tree import Tree, in_node_order
from trtspec.methods.choices import Choice, most_ranks
from trtspec.methods.medusa import Heads


class HeadStack:
    """The first `count` heads of a target's checkpoint, each of their matrices stacked over the heads."""

    def __init__(self, target: Decoder, count: int) -> None:
        document, config = target.checkpoint.document, target.config
        heads = Heads(
            num_heads=document.positive("num_medusa_heads"),
            num_layers=document.get("num_medusa_layers", int),
            hidden_size=config.hidden_size,
            vocab_size=config.vocab_size,
        )
        if heads.num_heads < count:
            raise document.refuse(f"says that there are {heads.num_heads} Medusa heads; the choices need {count}")
        self._blocks = [
            (
                _stack(target, [heads.weight(head, layer) for head in range(count)]),
                _stack(target, [heads.bias(head, layer) for head in range(count)]),
            )
            for layer in range(heads.num_layers)
        ]
        self._lm_heads = _stack(target, [heads.lm_head(head) for head in range(count)])

    def logits(self, hidden: Tensor, count: int) -> Tensor:
        """Return what the first `count` heads say to hidden states [rows, hidden]: [count, rows, vocab]."""
        states = hidden.expand(count, -1, -1)
        for weights, biases in self._blocks:
            states = states + F.silu(torch.baddbmm(biases[:count], states, weights[:count]))
        return torch.bmm(states, self._lm_heads[:count])


class Shape:
    """A tree of choices, and the places [nodes - 1] of its nodes among the tokens that each head ranks `ranks` of."""

    def __init__(self, choices: Sequence[Choice], ranks: int, device: torch.device) -> None:
        self.tree = Tree.of_paths(choices)
        places = [(len(choice) - 1) * ranks + choice[-1] for choice in in_node_order(choices)]
        self._places = torch.tensor(places, device=device)

    def fill(self, ranked: Tensor) -> Draft:
        """Return the tree with the tokens ranked [heads, rows, ranks]; they are chosen, not drawn."""
        return Draft(ranked.transpose(0, 1).flatten(1)[:, self._places], tree=self.tree)


class MedusaDrafter(Drafter):
    """Keeps for each row the hidden state that the heads read next: that of the last token but one of its text."""

    taps = (FINAL,)

    def __init__(self, setup: Setup) -> None:
        target, choices, depth = setup.target, setup.options.paths, setup.extent.depth
        rows, hidden_size = setup.room.rows, target.config.hidden_size
        self._heads = HeadStack(target, depth)
        self._ranks = most_ranks(choices)
        self._shapes = [
            Shape([choice for choice in choices if len(choice) <= levels], self._ranks, target.device)
            for levels in range(1, depth + 1)
        ]
        self._hidden = torch.zeros((rows, hidden_size), device=target.device, dtype=target.dtype)
        self._rows = torch.arange(rows, device=target.device)
        self._first_row, self._ends = 0, [0]

    def begin(self, prompts: Sequence[Sequence[int]], first_row: int, max_tokens: int) -> None:
        """Remember where the prompts end."""
        self._first_row, self._ends = first_row, [len(prompt) - 1 for prompt in prompts]

    def read(self, features: Tensor, start: int) -> None:
        """Keep the hidden state at the end of each prompt that ends here."""
        for row, end in enumerate(self._ends):
            if start <= end < start + features.shape[1]:
                self._hidden[self._first_row + row] = features[row, end - start]

    def propose(self, texts: Sequence[Sequence[int]], depth: int, sampling: Sampling | None) -> Draft:
        """Draft the first `depth` levels of the tree."""
        logits = self._heads.logits(self._hidden[: len(texts)], depth)
        return self._shapes[depth - 1].fill(logits.topk(self._ranks).indices)

    def observe(self, outcome: Outcome) -> None:
        """Keep the hidden state of each row's last accepted token."""
        if outcome.features is None:
            raise ValueError("Medusa heads read hidden states")
        rows = len(outcome.verdicts)
        ends = torch.tensor([verdict.path[-1] if verdict.path else 0 for verdict in outcome.verdicts])
        self._hidden[:rows] = outcome.features[self._rows[:rows], ends.to(self._rows.device)]

    def move_row(self, source: int, target: int, length: int) -> None:
        """Move the row's hidden state."""
        self._hidden[target] = self._hidden[source]


def _stack(target: Decoder, rules: list[Rule]) -> Tensor:
    """Return matrices as [heads, in, out], biases as [heads, 1, out]; they are read one at a time."""
    out_size, *in_size = rules[0].parts[0].shape
    stack = torch.empty((len(rules), *(in_size or [1]), out_size), device=target.device, dtype=target.dtype)
    for place, rule in zip(stack, rules, strict=True):
        place.copy_(join(target.checkpoint, rule).t())
    return stack


DRAFTER = MedusaDrafter
