# SPDX-License-Identifier: Apache-2.0
"""Dynamic trees (EAGLE-2, arXiv:2406.16858): the shape follows the head's confidence, for each row and step.

Level by level, the head ranks `top_k` tokens after each node of its frontier. A token's score is the head's probability
of the whole path to it. The `top_k` best tokens of a level are the next frontier, and the best of all ranked tokens are
the draft. No token scores higher than its parent, which is ranked before it, so the draft is a tree.

The tokens are deterministic even if a request samples: they depend only on the text.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from trtspec.engine.drafting.base import DraftSampling, DraftTokens
from trtspec.engine.drafting.head import FeatureHead
from trtspec.engine.drafting.tree_builder import TreeBuilder
from trtspec.engine.model.attention_masks import GrowingTree
from trtspec.kernels.tree import Tree


@dataclass(frozen=True)
class Frontier:
    """The nodes of a level that are extended, all [rows, n, ...].

    `features` are the head's features after these nodes, `scores` the log probabilities of their paths, and `ranked`
    their indices among all ranked tokens, -1 for the root.
    """

    features: Tensor
    scores: Tensor
    ranked: Tensor


@dataclass(frozen=True)
class RankedTokens:
    """Tokens ranked after a frontier [rows, n], by node, best first; `parents` are the `ranked` of the nodes."""

    tokens: Tensor
    scores: Tensor
    parents: Tensor


class DynamicTree(TreeBuilder):
    """Drafts the best `nodes` of `levels` levels of tokens."""

    def __init__(self, top_k: int, levels: int, nodes: int) -> None:
        self._top_k, self._levels, self._nodes = top_k, levels, nodes
        self.scratch = top_k * levels

    def grow(
        self, head: FeatureHead, features: Tensor, ends: list[int], depth: int, sampling: DraftSampling | None
    ) -> DraftTokens:
        """Return the tree of all levels; `depth` is ignored, because the best tokens must not depend on other rows."""
        rows = len(features)
        frontier = Frontier(
            features.unsqueeze(1),
            torch.zeros((rows, 1), device=head.device),
            torch.full((rows, 1), -1, device=head.device),
        )
        levels = [self._rank(head, frontier)]
        # the root is the token of the last pair
        windows = head.windows.growing(ends, self._top_k, self._levels - 1)
        before = 0
        for _ in range(1, self._levels):
            frontier = self._advance(head, frontier, levels[-1], before, windows)
            before += levels[-1].tokens.shape[1]
            levels.append(self._rank(head, frontier))
        return self._best(levels)

    def _rank(self, head: FeatureHead, frontier: Frontier) -> RankedTokens:
        """Rank the tokens after each node of a frontier."""
        logits = head.logits(frontier.features.flatten(0, 1)).view(*frontier.scores.shape, -1)
        best = torch.log_softmax(logits.float(), -1).topk(self._top_k, -1)
        return RankedTokens(
            tokens=head.vocabulary.to_target(best.indices).flatten(1),
            scores=(frontier.scores.unsqueeze(2) + best.values).flatten(1),
            parents=frontier.ranked.unsqueeze(2).expand_as(best.indices).flatten(1),
        )

    def _advance(
        self, head: FeatureHead, frontier: Frontier, ranked: RankedTokens, before: int, windows: GrowingTree
    ) -> Frontier:
        """Return the frontier of the last level's best tokens; `before` tokens were ranked in earlier levels."""
        best = _best_indices(ranked.scores, self._top_k)
        parents = best // self._top_k
        features = frontier.features.gather(1, parents.unsqueeze(2).expand(-1, -1, frontier.features.shape[2]))
        passed = head.forward(ranked.tokens.gather(1, best), features.flatten(0, 1), windows.below(parents))
        return Frontier(passed.view_as(features), ranked.scores.gather(1, best), before + best)

    def _best(self, levels: list[RankedTokens]) -> DraftTokens:
        """Return the draft of the best tokens of all levels, in the order in which they were ranked."""
        tokens = torch.cat([level.tokens for level in levels], 1)
        scores = torch.cat([level.scores for level in levels], 1)
        parents = torch.cat([level.parents for level in levels], 1)
        best = _best_indices(scores, self._nodes).sort(1).values
        count = best.shape[1]
        # one extra entry, so that index -1 gives the root's number, 0
        numbers = torch.zeros((len(tokens), tokens.shape[1] + 1), dtype=torch.int64, device=tokens.device)
        numbers.scatter_(1, best, torch.arange(1, count + 1, device=tokens.device).expand(len(tokens), -1))
        above = numbers.gather(1, parents.gather(1, best) % numbers.shape[1])
        root = np.full((len(tokens), 1), -1)
        return DraftTokens(tokens.gather(1, best), tree=Tree(np.concatenate([root, above.cpu().numpy()], 1)))


def _best_indices(scores: Tensor, count: int) -> Tensor:
    """Return the indices [rows, count] of the highest scores [rows, n]; of equal scores, the first ones."""
    return scores.argsort(stable=True, dim=1, descending=True)[:, :count]
