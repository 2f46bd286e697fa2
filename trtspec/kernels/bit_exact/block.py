# SPDX-License-Identifier: Apache-2.0
"""Verification of chains as a whole: test every prefix, and sample the token after the longest accepted one.

The rule equals `reference_block`, with the remaining mass in integers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trtspec.kernels.bit_exact import chain
from trtspec.kernels.bit_exact.batch import BatchRequest, ChainBatch, DraftRow, ExactChainResult
from trtspec.kernels.bit_exact.fixed_point import (
    BAD_DRAFT,
    DRAFT_NONFINITE,
    FIXED_ONE,
    Floats,
    WeightRow,
    draw,
    fix,
    to_unit,
)


def verify_block(batch: ChainBatch) -> ExactChainResult:
    """Return the part of each request's chain that is accepted as a whole, and its next token."""
    return chain.verify_each(batch, _walk)


@dataclass(frozen=True)
class _Position:
    """The position after `length` tokens; the target covers the share `kept` of their draft mass.

    `proposal` [vocab] is the distribution of the next drafted token, or None at the end of the chain.
    """

    length: int
    kept: float
    row: WeightRow
    proposal: Floats | None
    status: int

    @property
    def surplus(self) -> Floats:
        """The target's mass in excess of the draft's [vocab]."""
        return self.kept * self.row.probs - self.proposal if self.proposal is not None else self.row.probs

    def stays(self, uniform: int) -> bool:
        """Whether the prefix is accepted unless a longer one is."""
        if self.proposal is None or self.kept == 1.0:
            return to_unit(uniform) < self.kept
        surplus = float(int(fix(self.surplus).sum())) / FIXED_ONE
        return to_unit(uniform) * (surplus + (1.0 - self.kept)) < surplus

    def next(self, uniform: int) -> int:
        """Return the token after the prefix; sampled from the target's own weights if no surplus is left."""
        if self.row.status:
            return self.row.argmax
        left = None if self.proposal is None else fix(self.surplus)
        return draw(self.row.weights if left is None or not left.any() else left, uniform)


def _walk(request: BatchRequest, length: int) -> tuple[int, int, int]:
    """Return how many tokens are accepted, the next token, and the status."""
    if request.sampling.greedy:
        return chain.walk(request, length)
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
    """Read the rows of a position; the chain ends if one of them, or the token, is invalid."""
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
    """Return the distribution [vocab] of a token; one-hot if its row gives it probability 0."""
    return draft.probs if draft.probs[token] != 0.0 else np.eye(1, len(draft.probs), token)[0]
