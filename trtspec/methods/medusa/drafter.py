# SPDX-License-Identifier: Apache-2.0
"""Medusa: heads draft a whole tree in one pass, from the hidden state of the last token processed by the target.

All heads are computed with one matrix product per block, and one gather places their ranked tokens in the tree.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from trtspec.checkpoints.rules import Rule
from trtspec.checkpoints.trtllm import AGAIN
from trtspec.engine.drafting.base import DrafterConfig, DraftSampling, DraftTokens
from trtspec.engine.drafting.feature_drafters import HiddenStateDrafter
from trtspec.engine.model.decoder import Decoder
from trtspec.engine.model.weights import join_shards
from trtspec.kernels.tree import Tree, in_node_order
from trtspec.methods.medusa import Heads
from trtspec.methods.tree_choices import Choice, most_ranks


class HeadStack:
    """The first `count` heads of a target's checkpoint; their matrices are stacked over the heads."""

    def __init__(self, target: Decoder, count: int) -> None:
        document, config = target.checkpoint.document, target.config
        heads = Heads(
            num_heads=document.positive("num_medusa_heads"),
            num_layers=document.get("num_medusa_layers", int),
            hidden_size=config.hidden_size,
            vocab_size=config.vocab_size,
        )
        if heads.num_heads < count:
            raise document.refuse(f"has {heads.num_heads} Medusa heads, but the choices need {count}", AGAIN)
        self._blocks = [
            (
                _stack(target, [heads.weight(head, layer) for head in range(count)]),
                _stack(target, [heads.bias(head, layer) for head in range(count)]),
            )
            for layer in range(heads.num_layers)
        ]
        self._lm_heads = _stack(target, [heads.lm_head(head) for head in range(count)])

    def logits(self, hidden: Tensor, count: int) -> Tensor:
        """Return the logits [count, rows, vocab] of the first `count` heads for hidden states [rows, hidden]."""
        states = hidden.expand(count, -1, -1)
        for weights, biases in self._blocks:
            states = states + F.silu(torch.baddbmm(biases[:count], states, weights[:count]))
        return torch.bmm(states, self._lm_heads[:count])


class MedusaTreeShape:
    """A tree of choices with the indices [nodes - 1] of its nodes among the `ranks` ranked tokens of each head."""

    def __init__(self, choices: Sequence[Choice], ranks: int, device: torch.device) -> None:
        self.tree = Tree.from_choices(choices)
        indices = [(len(choice) - 1) * ranks + choice[-1] for choice in in_node_order(choices)]
        self._indices = torch.tensor(indices, device=device)

    def fill(self, ranked: Tensor) -> DraftTokens:
        """Return the tree with the ranked tokens [heads, rows, ranks]; they are deterministic."""
        return DraftTokens(ranked.transpose(0, 1).flatten(1)[:, self._indices], tree=self.tree)


class MedusaDrafter(HiddenStateDrafter):
    """Drafts the tree of choices."""

    def __init__(self, setup: DrafterConfig) -> None:
        super().__init__(setup)
        target, choices, depth = setup.target, setup.options.paths, setup.draft_shape.max_depth
        self._heads = HeadStack(target, depth)
        self._ranks = most_ranks(choices)
        self._shapes = [
            MedusaTreeShape([choice for choice in choices if len(choice) <= levels], self._ranks, target.device)
            for levels in range(1, depth + 1)
        ]

    def propose(self, texts: Sequence[Sequence[int]], depth: int, sampling: DraftSampling | None) -> DraftTokens:
        """Draft the first `depth` levels of the tree."""
        logits = self._heads.logits(self._hidden[: len(texts)], depth)
        return self._shapes[depth - 1].fill(logits.topk(self._ranks).indices)


def _stack(target: Decoder, rules: list[Rule]) -> Tensor:
    """Return matrices as [heads, in, out], biases as [heads, 1, out]; they are read one at a time."""
    out_size, *in_size = rules[0].sources[0].shape
    stack = torch.empty((len(rules), *(in_size or [1]), out_size), device=target.device, dtype=target.dtype)
    for slot, rule in zip(stack, rules, strict=True):
        slot.copy_(join_shards(target.checkpoint, rule).t())
    return stack


DRAFTER = MedusaDrafter
