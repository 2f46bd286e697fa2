# SPDX-License-Identifier: Apache-2.0
"""Recurrent Drafter: drafts by beam search from the hidden state of the last token that the target processed.

The formula is from apple/ml-recurrent-drafter: silu is applied to each new state, and rnn_u's bias is added from the
first step on. TensorRT-LLM omits both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from trtspec.engine.device import pad_rows
from trtspec.engine.drafting.base import DrafterConfig, DraftSampling, DraftTokens
from trtspec.engine.drafting.feature_drafters import HiddenStateDrafter
from trtspec.engine.model.decoder import Decoder
from trtspec.engine.model.weights import WeightLoader
from trtspec.kernels.tree import Tree
from trtspec.methods.redrafter import CANDIDATES, stored_head


class RecurrentNet:
    """The forward pass of the draft head for contexts [rows, hidden] and recurrent states [rows, beams, hidden]."""

    def __init__(self, target: Decoder) -> None:
        head = stored_head(target.checkpoint.document)
        weights = WeightLoader(target.checkpoint, head.rules(), target.device, target.dtype)
        self._project = weights.linear("drafter.input_proj") if head.projects else None
        self._layers = [weights.linear(f"drafter.layers.{layer}.linear") for layer in range(head.num_layers)]
        self._lm_head = weights.linear("drafter.lm_head")
        self._recurrent = (weights.linear("drafter.rnn_u"), weights.linear("drafter.rnn_w")) if head.is_rnn else None
        self._embedding = target.embedding

    def advance(self, states: Tensor, tokens: Tensor) -> Tensor:
        """Return the recurrent states after reading tokens [rows, beams]."""
        embedded = F.embedding(tokens, self._embedding)
        if self._recurrent is None:
            return embedded + states
        u, w = self._recurrent
        return F.silu(u(states.flatten(0, 1)) + w(embedded.flatten(0, 1))).view(states.shape)

    def logits(self, contexts: Tensor, states: Tensor) -> Tensor:
        """Return the next token's logits [rows, beams, vocab]."""
        rows, beams, _ = states.shape
        hidden = torch.cat([contexts.unsqueeze(1).expand(-1, beams, -1), states], -1).flatten(0, 1)
        if self._project is not None:
            hidden = self._project(hidden)
        for layer in self._layers:
            hidden = hidden + F.silu(layer(hidden))
        return self._lm_head(hidden).view(rows, beams, -1)


@dataclass(frozen=True)
class BeamLevel:
    """The tokens of a row's beams at one level, and the index of the previous level's beam that each one extends."""

    tokens: list[int]
    above: list[int]


class RecurrentDrafter(HiddenStateDrafter):
    """Drafts the best beams of each row, merged into a tree."""

    def __init__(self, setup: DrafterConfig) -> None:
        super().__init__(setup)
        self._head = RecurrentNet(setup.target)
        self._beams: int = setup.options.beams
        self._depth = setup.draft_shape.max_depth

    def propose(self, texts: Sequence[Sequence[int]], depth: int, sampling: DraftSampling | None) -> DraftTokens:
        """Draft each row's beams as a tree, truncated to `depth`.

        The search always runs to its full depth. Its final beams determine a row's draft, which must not depend on
        `depth`, because `depth` depends on the other rows.
        """
        last = torch.tensor([text[-1:] for text in texts], device=self._hidden.device)
        trees = [merge(levels, depth) for levels in self._search(self._hidden[: len(texts)], last)]
        width = max(len(parents) for _, parents in trees)
        tokens = pad_rows([row for row, _ in trees], last.device)
        return DraftTokens(tokens, tree=Tree(np.array([[*row, *[-1] * (width - len(row))] for _, row in trees])))

    def _search(self, contexts: Tensor, tokens: Tensor) -> list[list[BeamLevel]]:
        """Return the levels of each row's beams after tokens [rows, 1], with a single copy from device to host."""
        states = torch.zeros_like(contexts).unsqueeze(1)
        scores = torch.zeros_like(tokens, dtype=torch.float32)
        rows = self._rows[: len(tokens)].unsqueeze(1)
        found = []
        for _ in range(self._depth):
            states = self._head.advance(states, tokens)
            logits = self._head.logits(contexts, states).float()
            best, candidates = logits.topk(min(CANDIDATES, logits.shape[-1]))
            totals = (scores.unsqueeze(-1) + best.log_softmax(-1)).flatten(1)
            scores, picked = totals.topk(min(self._beams, totals.shape[1]))
            above, tokens = picked // best.shape[-1], candidates.flatten(1).gather(1, picked)
            states = states[rows, above]
            found.append(torch.stack([tokens, above], 1))
        widths = [level.shape[-1] for level in found]
        return [_levels(row, widths) for row in torch.cat(found, -1).tolist()]


def _levels(row: list[list[int]], widths: Sequence[int]) -> list[BeamLevel]:
    """Split a row's flat lists of tokens and parent indices into levels of `widths` beams."""
    tokens, above = map(iter, row)
    return [BeamLevel([next(tokens) for _ in range(width)], [next(above) for _ in range(width)]) for width in widths]


def merge(levels: Sequence[BeamLevel], depth: int) -> tuple[list[int], list[int]]:
    """Merge a row's beams into a tree of common prefixes, truncated to `depth`.

    Return the tokens of all nodes except the root, and the parents of all nodes. Nodes that lead to no beam of the last
    level are dropped. Beams are distinct, so each index of a level is one node.
    """
    alive = [set(range(len(levels[-1].tokens)))]
    for level in reversed(levels[1:]):
        alive.append({level.above[beam] for beam in alive[-1]})
    tokens: list[int] = []
    parents, nodes = [-1], {0: 0}
    for level, beams in zip(levels[:depth], reversed(alive), strict=False):
        above = nodes
        nodes = {}
        for beam in sorted(beams):
            nodes[beam] = len(parents)
            parents.append(above[level.above[beam]])
            tokens.append(level.tokens[beam])
    return tokens, parents


DRAFTER = RecurrentDrafter
