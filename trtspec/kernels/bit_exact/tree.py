# SPDX-License-Identifier: Apache-2.0
"""Verification of trees in numpy: the walk from the root down in each of the three modes, and KV-cache compaction.

Compaction moves the cache entries of accepted nodes to the end of the text.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from trtspec.kernels.bit_exact.batch import BatchRequest, DraftRow, Ints, Mode, TreeBatch, TreeResult, unfilled
from trtspec.kernels.bit_exact.fixed_point import (
    BAD_DRAFT,
    DRAFT_NONFINITE,
    FIXED_ONE,
    Floats,
    WeightRow,
    Weights,
    draw,
    exp2_weights,
    fix,
    to_unit,
    wrapped_sum,
)

Scalar = TypeVar("Scalar", bound=np.generic)


def kv_moves(path: Ints, starts: Ints) -> Ints:
    """Return moves [n, 3] of (row, source slot, target slot) for accepted nodes `path` [batch, nodes], padded with -1.

    A request's root is in slot `starts` [batch], and its nodes follow in order. In the returned order, no slot is
    written before it is read.
    """
    moves = [
        (row, start + node, start + depth)
        for row, (nodes, start) in enumerate(zip(path.tolist(), starts.tolist(), strict=True))
        for depth, node in enumerate(nodes, 1)
        if node > depth
    ]
    return np.array(moves, dtype=np.int32).reshape(-1, 3)


def compact_kv(cache: npt.NDArray[Scalar], moves: Ints) -> npt.NDArray[Scalar]:
    """Return a copy of a cache [rows, slots, ...] after all moves, which read the original slots."""
    moved = cache.copy()
    row, source, destination = moves.T
    moved[row, destination] = cache[row, source]
    return moved


def verify_tree(batch: TreeBatch) -> TreeResult:
    """Verify each request's tree with the rule of `batch.mode`; greedy requests use exact matching."""
    size, nodes = batch.tokens.shape
    results = TreeResult(unfilled(size, nodes), unfilled(size), unfilled(size), unfilled(size))
    for index in range(size):
        walk = _Walk(batch, index)
        token = _walk_to_end(walk, batch)
        results.path[index, : len(walk.path)], results.path_len[index] = walk.path, len(walk.path)
        results.next[index], results.status[index] = token, walk.status
    return results


def _walk_to_end(walk: _Walk, batch: TreeBatch) -> int:
    """Walk from the root as far as nodes are accepted; return the next token."""
    if walk.sampling.greedy or batch.mode == Mode.DETERMINISTIC:
        return _choose(walk)
    if batch.mode == Mode.SAMPLED:
        return _reject_recursively(walk)
    return _take_typical(walk, np.float32(batch.threshold), np.float32(batch.alpha))


class _Walk(BatchRequest):
    """The walk through one request's tree; `path` are the accepted nodes and `status` the error bits so far."""

    def __init__(self, batch: TreeBatch, index: int) -> None:
        super().__init__(batch, index)
        self.path: list[int] = []
        self._limit = len(self.tokens) if batch.limits is None else int(batch.limits[index])
        parents = enumerate(batch.parents[index].tolist())
        used = {node: parent for node, parent in parents if 0 <= parent < node}
        self._parents = {node: parent for node, parent in used.items() if 0 <= self.tokens[node] < self.vocab}
        self.status = BAD_DRAFT if len(self._parents) < len(used) else 0

    @property
    def node(self) -> int:
        return self.path[-1] if self.path else 0

    def row(self, node: int) -> WeightRow:
        row = super().row(node)
        self.status |= row.status
        return row

    def children(self, path: list[int]) -> list[int]:
        """Return the children, with valid tokens, of a path's last node; empty at the request's limit."""
        node = path[-1] if path else 0
        within = len(path) < self._limit
        return [child for child, parent in self._parents.items() if parent == node and within]

    def token(self, node: int) -> int:
        return self.tokens[node]


def _choose(walk: _Walk) -> int:
    """Follow the children whose token equals the one sampled at their parent; return the first unmatched sample."""
    while True:
        row = walk.row(walk.node)
        if row.status:
            return row.argmax
        sampled = draw(row.weights, walk.uniforms[walk.node])
        child = next((child for child in walk.children(walk.path) if walk.tokens[child] == sampled), None)
        if child is None:
            return sampled
        walk.path.append(child)


def _reject_recursively(walk: _Walk) -> int:
    """Accept children by recursive rejection sampling, in node order; return the next token."""
    while True:
        row = walk.row(walk.node)
        if row.status:
            return row.argmax
        residual = _Residual(row, walk.draft_row(walk.node))
        child = _first_accepted(walk, residual)
        if child is None:
            return draw(residual.weights(), walk.uniforms[0])
        walk.path.append(child)


def _first_accepted(walk: _Walk, residual: _Residual) -> int | None:
    """Return the last node's first accepted child, or None if all are rejected or the draft's row is unusable."""
    for child in walk.children(walk.path):
        token = walk.tokens[child]
        if not residual.open[token]:
            continue
        if residual.accepts(token, walk.uniforms[child]):
            return child
        if not residual.draft.usable:
            walk.status |= DRAFT_NONFINITE
            return None
        residual.reject(token)
    return None


class _Residual:
    """The residuals of a node's target row and draft row while its children are rejected one after another.

    `open` [vocab] marks tokens that were not rejected. With the rows' probabilities p and q, the residuals are

        T = max(a * p - b * q, 0)    the target's
        D = q * d                    the draft's, from which a child is sampled

    and 0 for rejected tokens. Replacing T by max(T - D, 0) changes only a and b, because T stays 0 where it is 0.
    """

    def __init__(self, row: WeightRow, draft: DraftRow) -> None:
        self.row, self.draft = row, draft
        self.open = np.ones(len(draft.probs), dtype=np.bool_)
        self.a, self.b, self.d = 1.0, 0.0, 1.0
        self._mass = draft.total

    def target(self, ids: int | slice = slice(None)) -> Floats:
        """Return the target's residual T of one id, or of all ids [vocab]."""
        residual = np.maximum(self.a * self.row.probs[ids] - self.b * self.draft.probs[ids], 0.0)
        return np.where(self.open[ids], residual, 0.0)

    def accepts(self, token: int, uniform: int) -> bool:
        """Return whether a token is accepted; a token with probability 0 in the draft's row counts as deterministic."""
        if not self.draft.is_prob(token):
            return False
        drawn_from = self.draft.probs[token] * self.d
        bound = to_unit(uniform) * drawn_from if drawn_from > 0.0 else to_unit(uniform)
        return bool(bound < self.target(token))

    def reject(self, token: int) -> None:
        """Remove a rejected token from both residuals and normalize them."""
        sampled = self.draft.probs[token] * self.d > 0.0
        taken = self.d if sampled else 0.0
        rest = fix(self.target() - self.draft.probs * taken)
        self.open[token] = False
        mass = wrapped_sum(rest[self.open]) / FIXED_ONE
        if mass > 0.0:
            self.a, self.b = self.a / mass, (self.b + taken) / mass
        if sampled:
            self._mass = (self._mass - int(self.draft.masses[token])) % 2**64
            self.d = self.draft.unit / float(self._mass) if self._mass > 0 else 0.0

    def weights(self) -> Weights:
        """Return the weights [vocab] from which the next token is sampled."""
        if self.open.all():
            return self.row.weights
        residual = fix(self.target())
        return residual if residual.any() else self.row.weights


def _take_typical(walk: _Walk, threshold: np.float32, alpha: np.float32) -> int:
    """Accept the longest path of typical tokens (arXiv:2401.10774); return a token sampled after it."""
    paths: dict[int, list[int]] = {0: []}
    for node in range(len(walk.tokens)):
        children = walk.children(paths[node]) if node in paths else []
        row = walk.row(node) if children else None
        if row is None or row.status:
            continue
        bound = min(float(threshold), float(alpha) * _exp_of_minus_entropy(row))
        for child in children:
            if row.probs[walk.tokens[child]] > bound:
                paths[child] = [*paths[node], child]
    walk.path = max((paths[node] for node in sorted(paths)), key=len)
    row = walk.row(walk.node)
    return row.argmax if row.status else draw(row.weights, walk.uniforms[0])


def _exp_of_minus_entropy(row: WeightRow) -> float:
    """Return exp(-entropy) of a row, computed as 2 to the mean of log2(p) with integer sums."""
    steps = np.rint(row.exponents * np.float32(-1024.0))
    kept = row.weights > 0
    spent = wrapped_sum((row.weights[kept] >> np.uint64(16)) * steps[kept].astype(np.uint64))
    mean = float(spent) * 64.0 * row.per_weight
    return float(exp2_weights(np.array([-mean], dtype=np.float32))[0]) * row.per_weight
