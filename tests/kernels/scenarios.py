# SPDX-License-Identifier: Apache-2.0
"""Scenarios for the acceptance rules: shapes of drafts, origins of their tokens, and the matching reference rule."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from tests.kernels import reference
from tests.kernels.distribution import (
    Array,
    Box,
    Case,
    Options,
    Rule,
    Table,
    boxes,
    deterministic,
    drafts,
    prefix_of,
    random_table,
    sampled,
)
from trtspec.kernels.chain import VerifyResult

MARGIN = 1e-10
CHAIN = (-1, 0, 1)
TWO_LEVELS = (-1, 0, 0, 1, 1)
THREE_SIBLINGS = (-1, 0, 0, 0)
UNUSED = (-1, -1, 0, 0, -1, 2, -1)


def verify_chain(case: Case, uniforms: Array) -> VerifyResult:
    """The rule of chains for a tree with one branch."""
    draft_probs = None if case.draft_probs is None else case.draft_probs[:-1]
    return reference.verify_chain(case.target_probs, draft_probs, case.tokens[1:], uniforms)


def verify_block(case: Case, uniforms: Array) -> VerifyResult:
    """The rule of blocks for a tree with one branch."""
    draft_probs = None if case.draft_probs is None else case.draft_probs[:-1]
    return reference.verify_block(case.target_probs, draft_probs, case.tokens[1:], uniforms)


def verify_tree(case: Case, uniforms: Array) -> VerifyResult:
    """The rule of trees for deterministic or sampled tokens."""
    tree = (case.tokens, case.parents, case.limit, uniforms)
    if case.draft_probs is None:
        return reference.verify_deterministic(case.target_probs, *tree)
    return reference.verify_sampled(case.target_probs, case.draft_probs, *tree)


@dataclass(frozen=True)
class Scenario:
    """Drafts with the shape `parents` and tokens from `options`, verified by `rule`.

    A rule receives the distributions of sampled tokens; for deterministic tokens it receives None, or rows of zeros
    with `zero_rows`.
    """

    rule: Rule
    parents: tuple[int, ...]
    options: Options
    zero_rows: bool = False
    vocab: int = 3
    limit: int = 2
    depth: int = 2

    @property
    def columns(self) -> tuple[int, ...]:
        """The uniforms in the order in which the rule reads them."""
        nodes = tuple(range(len(self.parents)))
        if self.rule is verify_block:  # the last token's uniform decides first
            return (*nodes[-2::-1], nodes[-1])
        recursive = self.rule is verify_tree and (self.options is sampled or self.zero_rows)
        return (*nodes[1:], 0) if recursive else nodes

    def target(self, seed: int, zeros: bool) -> Table:
        """Return the target's distribution after every prefix."""
        return random_table(seed, self.vocab, self.depth, zeros)

    def cases(self, seed: int, zeros: bool) -> list[Case]:
        """Return every draft."""
        target, draft = self.target(seed, zeros), random_table(100 + seed, self.vocab, self.depth, zeros)
        parents = np.array(self.parents)
        found = []
        for tokens, weight in drafts(self.parents, draft, self.options):
            prefixes = [prefix_of(node, tokens, self.parents) for node in range(len(tokens))]
            rows = np.array([draft[prefix] for prefix in prefixes])
            draft_probs = rows if self.options is sampled else np.zeros_like(rows) if self.zero_rows else None
            target_probs = np.array([target[prefix] for prefix in prefixes])
            found.append(Case(parents, np.array(tokens), target_probs, draft_probs, weight, self.limit))
        return found


@lru_cache
def boxes_of(scenario: Scenario, seed: int, zeros: bool) -> list[Box]:
    """Return the boxes of uniforms and results of the scenario's rule."""
    return [box for case in scenario.cases(seed, zeros) for box in boxes(scenario.rule, case, scenario.columns)]


CHAINS = {
    "sampled": Scenario(verify_chain, CHAIN, sampled, vocab=4),
    "deterministic": Scenario(verify_chain, CHAIN, deterministic, vocab=4),
}
BLOCKS = {
    "sampled": Scenario(verify_block, CHAIN, sampled, vocab=4),
    "sampled, three tokens": Scenario(verify_block, (-1, 0, 1, 2), sampled, depth=3, limit=3),
    "deterministic": Scenario(verify_block, CHAIN, deterministic, vocab=4),
}
TREES = {
    "sampled": Scenario(verify_tree, TWO_LEVELS, sampled),
    "sampled, three siblings": Scenario(verify_tree, THREE_SIBLINGS, sampled, vocab=4),
    "sampled, limited": Scenario(verify_tree, TWO_LEVELS, sampled, limit=1),
    "sampled, unused nodes": Scenario(verify_tree, UNUSED, sampled),
    "sampled, a chain": Scenario(verify_tree, CHAIN, sampled, vocab=4),
    "deterministic": Scenario(verify_tree, TWO_LEVELS, deterministic),
    "deterministic, limited": Scenario(verify_tree, TWO_LEVELS, deterministic, limit=1),
    "deterministic, unused nodes": Scenario(verify_tree, UNUSED, deterministic),
    "deterministic, a chain": Scenario(verify_tree, CHAIN, deterministic, vocab=4),
    "deterministic, with zero rows": Scenario(verify_tree, TWO_LEVELS, deterministic, zero_rows=True),
}


class Identity:
    """A SamplingParams that uses the target's probabilities as logits, without rounding."""

    @staticmethod
    def probs(logits: Tensor) -> Tensor:
        return logits


@dataclass(frozen=True)
class Corners:
    """A batch [rows] of uniforms just inside two opposite corners of each box, with the reference's results."""

    cases: list[Case]
    uniforms: Tensor
    results: list[VerifyResult]

    @classmethod
    def of(cls, boxes: list[Box]) -> Corners:
        """Omit boxes that are so narrow that rounding decides."""
        wide = [box for box in boxes if min(np.subtract(box.highs, box.lows)) > 3 * MARGIN]
        lows, highs = np.array([box.lows for box in wide]), np.array([box.highs for box in wide])
        uniforms = torch.from_numpy(np.concatenate([lows + MARGIN, highs - MARGIN]))
        return cls([box.case for box in wide] * 2, uniforms, [box.result for box in wide] * 2)

    def stack(self, name: str) -> Tensor:
        """Return a field of the cases [rows, nodes, ...]."""
        return torch.from_numpy(np.array([getattr(case, name) for case in self.cases]))

    @property
    def draft_probs(self) -> Tensor | None:
        """The draft's rows for the rule [rows, nodes, vocab], or None."""
        return None if self.cases[0].draft_probs is None else self.stack("draft_probs")
