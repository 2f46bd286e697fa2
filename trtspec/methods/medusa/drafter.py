# SPDX-License-Identifier: Apache-2.0
"""Medusa: heads draft a whole tree in one pass, from the hidden state of the last token that the target processed.

All heads are computed with one matrix product per block, and one gather places their top tokens in the tree.
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
from trtspec.methods.tree_choices import most_ranks


class HeadStack:
    """The first `count` Medusa heads of a target's checkpoint, with weights stacked over the heads."""

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


class MedusaDrafter(HiddenStateDrafter):
    """Drafts the static tree in the options, filled with the most probable tokens of each head."""

    def __init__(self, setup: DrafterConfig) -> None:
        super().__init__(setup)
        target, choices, depth = setup.target, setup.options.paths, setup.draft_shape.max_depth
        self._heads = HeadStack(target, depth)
        self._ranks = most_ranks(choices)
        # by depth: a tree, and the indices of its nodes among the ranked tokens of all heads
        self._shapes: list[tuple[Tree, Tensor]] = []
        for levels in range(1, depth + 1):
            nodes = in_node_order([choice for choice in choices if len(choice) <= levels])
            indices = [(len(choice) - 1) * self._ranks + choice[-1] for choice in nodes]
            self._shapes.append((Tree.from_choices(nodes), torch.tensor(indices, device=target.device)))

    def propose(self, texts: Sequence[Sequence[int]], depth: int, sampling: DraftSampling | None) -> DraftTokens:
        logits = self._heads.logits(self._hidden[: len(texts)], depth)
        tree, indices = self._shapes[depth - 1]
        return DraftTokens(logits.topk(self._ranks).indices.transpose(0, 1).flatten(1)[:, indices], tree=tree)


def _stack(target: Decoder, rules: list[Rule]) -> Tensor:
    """Return matrices as [heads, in, out] or biases as [heads, 1, out], reading one tensor at a time."""
    out_size, *in_size = rules[0].sources[0].shape
    stack = torch.empty((len(rules), *(in_size or [1]), out_size), device=target.device, dtype=target.dtype)
    for slot, rule in zip(stack, rules, strict=True):
        slot.copy_(join_shards(target.checkpoint, rule).t())
    return stack


DRAFTER = MedusaDrafter
