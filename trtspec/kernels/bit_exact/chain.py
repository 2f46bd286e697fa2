# SPDX-License-Identifier: Apache-2.0
"""Verification of chains: test each token against its row, and sample a replacement for the first rejected one."""

from __future__ import annotations

from collections.abc import Callable

from trtspec.kernels.bit_exact.batch import BatchRequest, ChainBatch, DraftRow, ExactChainResult, unfilled
from trtspec.kernels.bit_exact.fixed_point import BAD_DRAFT, DRAFT_NONFINITE, WeightRow, Weights, draw, fix, to_unit


def verify_chain(batch: ChainBatch) -> ExactChainResult:
    """Return the accepted part of each request's chain, and its next token."""
    return verify_each(batch, walk)


def verify_each(batch: ChainBatch, rule: Callable[[BatchRequest, int], tuple[int, int, int]]) -> ExactChainResult:
    """Apply a rule to each request and the length of its chain; the rule returns (accepted, next token, status)."""
    size, draft_len = batch.tokens.shape
    results = ExactChainResult(unfilled(size), unfilled(size, draft_len + 1), unfilled(size), unfilled(size))
    for index in range(size):
        request = batch.request(index)
        length = draft_len if batch.lengths is None else min(max(int(batch.lengths[index]), 0), draft_len)
        accepted, token, status = rule(request, length)
        results.accepted[index], results.next[index], results.status[index] = accepted, token, status
        results.output[index, : accepted + 1] = [*request.tokens[:accepted], token]
    return results


def walk(request: BatchRequest, length: int) -> tuple[int, int, int]:
    """Return (number of accepted tokens, next token, status)."""
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
    """Return None if the token is accepted, else weights [vocab] for the next one; and the status."""
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
