# SPDX-License-Identifier: Apache-2.0
"""Verification of chains in numpy, token by token or as a whole.

Token by token, each token is tested against its row, and a replacement for the first rejected token is sampled. As a
whole, every prefix is tested, and the token after the longest accepted prefix is sampled. That rule equals
`verify_block` in tests/kernels/reference.py, with the remaining mass in integers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from trtspec.kernels.bit_exact.batch import BatchRequest, ChainBatch, ChainResult, DraftRow, unfilled
from trtspec.kernels.bit_exact.fixed_point import (
    BAD_DRAFT,
    DRAFT_NONFINITE,
    FIXED_ONE,
    Floats,
    WeightRow,
    Weights,
    draw,
    fix,
    to_unit,
)


def verify_chain(batch: ChainBatch) -> ChainResult:
    """Verify each request's chain token by token."""
    return verify_each(batch, walk)


def verify_each(batch: ChainBatch, rule: Callable[[BatchRequest, int], tuple[int, int, int]]) -> ChainResult:
    """Apply a rule to each request of a batch.

    The rule is called with the request and the length of its chain, and returns (accepted, next token, status).
    """
    size, draft_len = batch.tokens.shape
    results = ChainResult(unfilled(size), unfilled(size, draft_len + 1), unfilled(size), unfilled(size))
    for index in range(size):
        request = BatchRequest(batch, index)
        length = draft_len if batch.lengths is None else min(max(int(batch.lengths[index]), 0), draft_len)
        accepted, token, status = rule(request, length)
        results.accepted[index], results.next[index], results.status[index] = accepted, token, status
        results.output[index, : accepted + 1] = [*request.tokens[:accepted], token]
    return results


def walk(request: BatchRequest, length: int) -> tuple[int, int, int]:
    """Verify a chain of `length` tokens; return (number of accepted tokens, next token, status)."""
    for position in range(length):
        row = request.row(position)
        if row.status:
            return position, row.argmax, row.status
        uniform, token = request.uniforms[position], request.tokens[position]
        rest, status = _test(row, request.draft_row(position), token, uniform)
        if rest is not None:
            return position, draw(rest, request.uniforms[-1]), status
    row = request.row(length)
    return length, row.argmax if row.status else draw(row.weights, request.uniforms[-1]), row.status


def _test(row: WeightRow, draft: DraftRow, token: int, uniform: int) -> tuple[Weights | None, int]:
    """Test a token; return (None, 0) if it is accepted, else the weights [vocab] of the next token and the status."""
    if not 0 <= token < len(row.weights):
        return row.weights, BAD_DRAFT
    if draft.probs[token] == 0.0:
        accepted = uniform * row.total < int(row.weights[token]) << 32
        return (None if accepted else row.without(token)), 0
    if draft.is_prob(token) and to_unit(uniform) * draft.probs[token] < row.probs[token]:
        return None, 0
    if not draft.usable:
        return row.weights, DRAFT_NONFINITE
    rest = fix(row.probs - draft.probs)
    return (rest if rest.any() else row.weights), 0


def verify_block(batch: ChainBatch) -> ChainResult:
    """Verify each request's chain as a whole (block verification)."""
    return verify_each(batch, _walk_block)


@dataclass(frozen=True)
class _Position:
    """The position after the first `length` tokens; the target covers the share `kept` of their draft mass.

    `proposal` [vocab] is the distribution of the next draft token, or None at the end of the chain.
    """

    length: int
    kept: float
    row: WeightRow
    proposal: Floats | None
    status: int

    @property
    def surplus(self) -> Floats:
        """Return the target's mass [vocab] minus the draft's; values may be negative."""
        return self.kept * self.row.probs - self.proposal if self.proposal is not None else self.row.probs

    def stays(self, uniform: int) -> bool:
        """Return whether the prefix that ends at this position is accepted, unless a longer one is."""
        if self.proposal is None or self.kept == 1.0:
            return to_unit(uniform) < self.kept
        surplus = float(int(fix(self.surplus).sum())) / FIXED_ONE
        return to_unit(uniform) * (surplus + (1.0 - self.kept)) < surplus

    def next(self, uniform: int) -> int:
        """Return the token after the prefix, sampled from the surplus, or from the target's weights without one."""
        if self.row.status:
            return self.row.argmax
        left = None if self.proposal is None else fix(self.surplus)
        return draw(self.row.weights if left is None or not left.any() else left, uniform)


def _walk_block(request: BatchRequest, length: int) -> tuple[int, int, int]:
    """Verify a chain of `length` tokens as a whole; return (number of accepted tokens, next token, status)."""
    if request.sampling.greedy:
        return walk(request, length)
    position = best = _read_position(request, length, 0, 1.0)
    status = position.status
    while position.proposal is not None:
        token = request.tokens[position.length]
        covered, drafted = position.kept * position.row.probs[token], position.proposal[token]
        kept = float(covered / drafted) if covered < drafted else 1.0
        if kept == 0.0:
            break
        position = _read_position(request, length, position.length + 1, kept)
        status |= position.status
        if position.stays(request.uniforms[position.length - 1]):
            best = position
    return best.length, best.next(request.uniforms[-1]), status


def _read_position(request: BatchRequest, length: int, here: int, kept: float) -> _Position:
    """Return the position after `here` tokens; the chain ends at it if a row or the next draft token is invalid."""
    row = request.row(here)
    if row.status or here == length:
        return _Position(here, kept, row, None, row.status)
    token, draft = request.tokens[here], request.draft_row(here)
    if not 0 <= token < request.vocab:
        return _Position(here, kept, row, None, BAD_DRAFT)
    if not draft.usable:
        return _Position(here, kept, row, None, DRAFT_NONFINITE)
    return _Position(here, kept, row, _proposal(draft, token), 0)


def _proposal(draft: DraftRow, token: int) -> Floats:
    """Return the distribution [vocab] from which a token was drafted; one-hot if its row gives it probability 0."""
    return draft.probs if draft.probs[token] != 0.0 else np.eye(1, len(draft.probs), token)[0]
