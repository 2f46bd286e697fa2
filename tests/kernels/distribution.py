# SPDX-License-Identifier: Apache-2.0
"""The exact distribution of the text under an acceptance rule, by enumeration over a small vocabulary.

Every draft is enumerated with its probability, and the unit cube of the uniforms is divided into boxes with a constant
result. The positions of the cuts are not assumed but found by bisection, so a rule that accepts at a wrong position is
detected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np

from trtspec.kernels.chain import VerifyResult

Array = np.ndarray
Table = dict[tuple[int, ...], Array]
Options = Callable[[Array, list[int]], list[tuple[int, float]]]
CUT_WIDTH = 2.0**-47


@dataclass(frozen=True)
class Case:
    """A drafted tree [nodes] that occurs with probability `weight`; rows are [nodes, vocab].

    `draft_probs` are the distributions of the tokens as passed to the rule, or None for deterministic tokens.
    """

    parents: Array
    tokens: Array
    target_probs: Array
    draft_probs: Array | None
    weight: float
    limit: int


@dataclass(frozen=True)
class Box:
    """For uniforms between `lows` and `highs` [columns], the rule returns `result`."""

    case: Case
    result: VerifyResult
    lows: tuple[float, ...]
    highs: tuple[float, ...]

    @property
    def weight(self) -> float:
        """The probability of the case and of uniforms in the box."""
        return self.case.weight * float(np.prod(np.array(self.highs) - np.array(self.lows)))


Rule = Callable[[Case, Array], VerifyResult]


def random_table(seed: int, vocab: int, length: int, zeros: bool) -> Table:
    """Return a next-token distribution for every prefix of up to `length` tokens."""
    rng = np.random.default_rng(seed)
    table = {}
    for prefix in (prefix for size in range(length + 1) for prefix in product(range(vocab), repeat=size)):
        row = rng.dirichlet(np.ones(vocab) * 0.7)
        if zeros:
            row[rng.integers(vocab)] = 0.0
            row[rng.integers(vocab)] += 1e-3
        table[prefix] = row / row.sum()
    return table


def sampled(row: Array, elders: list[int]) -> list[tuple[int, float]]:
    """Return a child's possible tokens and probabilities when it is drawn without its elder siblings' tokens."""
    rest = row.copy()
    rest[elders] = 0.0
    if rest.sum() == 0.0:
        return deterministic(row, elders)
    return [(token, mass / rest.sum()) for token, mass in enumerate(rest) if mass > 0.0]


def deterministic(row: Array, elders: list[int]) -> list[tuple[int, float]]:
    """Return the best token that is not an elder sibling's."""
    return [(max(set(range(len(row))) - set(elders), key=lambda token: row[token]), 1.0)]


def prefix_of(node: int, tokens: tuple[int, ...], parents: tuple[int, ...]) -> tuple[int, ...]:
    """Return the tokens from below the root down to a node; empty for an unused node."""
    return (*prefix_of(parents[node], tokens, parents), tokens[node]) if parents[node] >= 0 else ()


def drafts(parents: tuple[int, ...], draft: Table, options: Options) -> list[tuple[tuple[int, ...], float]]:
    """Return the possible tokens [nodes] of a tree with their probabilities; an unused node has token 0."""
    grown: list[tuple[tuple[int, ...], float]] = [((0,), 1.0)]
    for node, parent in enumerate(parents[1:], 1):
        elders = [elder for elder in range(1, node) if parents[elder] == parent]
        longer = []
        for tokens, weight in grown:
            row = draft[prefix_of(parent, tokens, parents)]
            found = options(row, [tokens[elder] for elder in elders]) if parent >= 0 else [(0, 1.0)]
            longer += [((*tokens, token), weight * share) for token, share in found]
        grown = longer
    return grown


def boxes(rule: Rule, case: Case, columns: tuple[int, ...]) -> Iterator[Box]:
    """Divide the cube of the uniforms; `columns` is the order in which the rule reads them."""
    yield from _cut(rule, case, columns, [0.0] * len(columns), [1.0] * len(columns))


def _cut(rule: Rule, case: Case, columns: tuple[int, ...], lows: list[float], highs: list[float]) -> Iterator[Box]:
    if not columns:
        yield Box(case, rule(case, np.array(lows)), tuple(lows), tuple(highs))
        return
    column, *rest = columns

    def at(uniform: float) -> VerifyResult:
        return rule(case, np.array([*lows[:column], uniform, *lows[column + 1 :]]))

    for low, high in _pieces(at):
        below, above = lows.copy(), highs.copy()
        below[column], above[column] = low, high
        yield from _cut(rule, case, tuple(rest), below, above)


def _pieces(at: Callable[[float], VerifyResult]) -> Iterator[tuple[float, float]]:
    """Yield the intervals on which a step function of [0, 1) is constant, with its value at their start."""
    low, end = 0.0, float(np.nextafter(1.0, 0.0))
    last = at(end)
    while (value := at(low)) != last:
        inside, beyond = low, end
        while beyond - inside > CUT_WIDTH:
            middle = (inside + beyond) / 2
            inside, beyond = (middle, beyond) if at(middle) == value else (inside, middle)
        yield low, beyond
        low = beyond
    yield low, 1.0


def text_distribution(found: list[Box], target: Table) -> Array:
    """Return the distribution [vocab, vocab, ...] of the text; the target completes shorter outputs."""
    length = max(len(prefix) for prefix in target) + 1
    distribution = np.zeros((len(target[()]),) * length)
    for box in found:
        path = [int(box.case.tokens[node]) for node in box.result.path]
        _add(distribution, (*path, box.result.token), box.weight, target)
    return distribution


def target_distribution(target: Table) -> Array:
    """Return the distribution of the text that the target generates alone."""
    distribution = text_distribution([], target)
    _add(distribution, (), 1.0, target)
    return distribution


def _add(distribution: Array, text: tuple[int, ...], weight: float, target: Table) -> None:
    if len(text) == distribution.ndim:
        distribution[text] += weight
        return
    for token, share in enumerate(target[text]):
        _add(distribution, (*text, token), weight * share, target)


def is_lossless(distribution: Array, target: Table) -> bool:
    """Return whether a distribution equals the target's: everywhere to 1e-12, and exactly where that is zero."""
    wanted = target_distribution(target)
    return bool(np.abs(distribution - wanted).max() < 1e-12 and not distribution[wanted == 0.0].any())
