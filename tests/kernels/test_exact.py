# SPDX-License-Identifier: Apache-2.0
"""The numpy reference passes every check of `exactness`, and instructive errors fail them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from tests.kernels import random_checks
from tests.kernels.exactness import BLOCK_CHECKS, CHAIN_CHECKS, TREE_CHECKS
from trtspec.kernels import bit_exact
from trtspec.kernels.bit_exact import ChainBatch, ChainResult, chain, compact_kv, fixed_point, kv_moves, tree
from trtspec.kernels.bit_exact.batch import DraftRow
from trtspec.kernels.bit_exact.fixed_point import (
    EXP2_COEFFICIENTS,
    ONE,
    RowSampling,
    WeightRow,
    exp2_weights,
    fma32,
    read_row,
)

HEADER = Path(__file__).parents[2] / "plugins/common/exp2_coefficients.h"


@pytest.fixture(autouse=True)
def remembered_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cache equal rows: the distributions read a few of them ten thousand times."""
    known: dict[tuple[bytes, np.dtype, RowSampling], WeightRow] = {}

    def read(logits: np.ndarray, sampling: RowSampling) -> WeightRow:
        key = (logits.tobytes(), logits.dtype, sampling)
        if key not in known:
            known[key] = read_row(logits, sampling)
            known[key].weights.flags.writeable = False
        return known[key]

    monkeypatch.setattr("trtspec.kernels.bit_exact.batch.read_row", read)


@pytest.mark.slow
@pytest.mark.parametrize("name", CHAIN_CHECKS)
def test_chain_reference_passes_the_checks(name: str) -> None:
    CHAIN_CHECKS[name](bit_exact.verify_chain)


@pytest.mark.slow
@pytest.mark.parametrize("name", BLOCK_CHECKS)
def test_block_reference_passes_the_checks(name: str) -> None:
    BLOCK_CHECKS[name](bit_exact.verify_block)


@pytest.mark.slow
@pytest.mark.parametrize("name", TREE_CHECKS)
def test_tree_reference_passes_the_checks(name: str) -> None:
    TREE_CHECKS[name](bit_exact.verify_tree)


def test_tree_with_one_branch_equals_a_chain() -> None:
    random_checks.check_a_tree_of_one_branch_is_a_chain(bit_exact.verify_tree, bit_exact.verify_chain)


# -- wrong implementations fail the checks -----------------------------------------------------------------------------


def without_residual(row: WeightRow, draft: DraftRow, token: int, uniform: int) -> tuple[np.ndarray | None, int]:
    rest, status = RIGHT_TEST(row, draft, token, uniform)
    return (None if rest is None else row.weights), status


def accepting_on_equality(row: WeightRow, draft: DraftRow, token: int, uniform: int) -> tuple[np.ndarray | None, int]:
    return RIGHT_TEST(row, draft, token, max(uniform - 1, 0)) if row.weights[token] else (None, 0)


def without_a_look_at_the_draft_row(row: WeightRow, draft: DraftRow, token: int, uniform: int) -> tuple:
    return RIGHT_TEST(row, replace(draft, usable=True, probs=np.nan_to_num(draft.probs)), token, uniform)


def against_the_first_target(left: tree._Residual, token: int) -> None:
    left.open[token] = False


def with_replacement(left: tree._Residual, token: int) -> None:
    RIGHT_REJECT(left, token)
    left.d = 1.0


def at_the_threshold(weights: np.ndarray, uniform: int) -> int:
    upto = np.cumsum(weights)
    return int(np.searchsorted(upto, np.uint64(uniform * int(upto[-1]) >> 32), side="left"))


def in_half_precision(weights: np.ndarray, uniform: int) -> int:
    upto = np.cumsum((weights / weights.max()).astype(np.float16), dtype=np.float16)
    return min(int(np.searchsorted(upto, upto[-1] * np.float16(uniform * 2.0**-32), side="right")), len(upto) - 1)


def keeping_equals(logits: np.ndarray, weights: np.ndarray, top_k: int, top_p: float) -> np.ndarray:
    kept = RIGHT_TRUNCATE(logits, weights, top_k, top_p)
    return np.where(logits >= logits[kept > 0].min(), weights, 0) if kept.any() else kept


def laundering(logits: np.ndarray, sampling: RowSampling) -> WeightRow:
    return read_row(np.nan_to_num(logits, nan=-np.inf, posinf=0.0, neginf=-np.inf), sampling)


def by_place_in_the_batch(batch: ChainBatch) -> ChainResult:
    places = np.arange(len(batch.tokens), dtype=np.uint32)[:, None]
    return bit_exact.verify_chain(replace(batch, uniforms=batch.uniforms ^ places << np.uint32(29)))


RIGHT_TEST, RIGHT_REJECT, RIGHT_TRUNCATE = chain._test, tree._Residual.reject, fixed_point.truncate
WRONG_PARTS = [
    (chain, "_test", without_residual, CHAIN_CHECKS, "distribution, sampled, with probabilities"),
    (chain, "_test", without_residual, CHAIN_CHECKS, "distribution, deterministic"),
    (chain, "_test", accepting_on_equality, CHAIN_CHECKS, "deterministic tokens at every edge"),
    (chain, "_test", accepting_on_equality, CHAIN_CHECKS, "weight zero"),
    (chain, "_test", without_a_look_at_the_draft_row, CHAIN_CHECKS, "ill rows of the draft"),
    (chain, "draw", at_the_threshold, CHAIN_CHECKS, "draws at every edge"),
    (chain, "draw", in_half_precision, CHAIN_CHECKS, "distribution, sampled, truncated"),
    (chain, "draw", in_half_precision, CHAIN_CHECKS, "vocabulary of 32000"),
    (fixed_point, "truncate", keeping_equals, CHAIN_CHECKS, "ties"),
    ("trtspec.kernels.bit_exact.batch", "read_row", laundering, CHAIN_CHECKS, "ill rows"),
    (tree._Residual, "reject", against_the_first_target, TREE_CHECKS, "distribution, sampled, with probabilities"),
    (tree._Residual, "reject", with_replacement, TREE_CHECKS, "distribution, sampled, with logits"),
    (tree._Residual, "reject", with_replacement, TREE_CHECKS, "siblings at every edge"),
    ("trtspec.kernels.bit_exact.batch", "read_row", laundering, TREE_CHECKS, "ill rows"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("where", "part", "wrong", "checks", "name"), WRONG_PARTS)
def test_wrong_part_is_detected(
    where: object, part: str, wrong: Callable, checks: dict, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if isinstance(where, str):
        monkeypatch.setattr(f"{where}.{part}", wrong)
    else:
        monkeypatch.setattr(where, part, wrong)
    with pytest.raises(AssertionError):
        checks[name](bit_exact.verify_chain if checks is CHAIN_CHECKS else bit_exact.verify_tree)


def test_uniforms_that_depend_on_the_batch_position_are_detected() -> None:
    with pytest.raises(AssertionError):
        CHAIN_CHECKS["every batch, deterministic"](by_place_in_the_batch)


# -- weights -----------------------------------------------------------------------------------------------------------


def test_exp2_coefficients_equal_those_of_the_header() -> None:
    found = re.findall(r"#define TRTSPEC_EXP2_C(\d) (0x[0-9a-f.p-]+)f\n", HEADER.read_text())
    assert found == [(str(place), digits) for place, digits in enumerate(EXP2_COEFFICIENTS, 1)]


def test_exp2_weights_are_accurate_to_float32_and_monotonic() -> None:
    t = -np.random.default_rng(0).random(200_000).astype(np.float32) * 12
    expected = np.exp2(t.astype(np.float64)) * ONE
    assert np.abs(exp2_weights(t) / expected - 1.0).max() < 1.8e-7
    assert (np.diff(exp2_weights(np.sort(t)).astype(np.int64)) >= 0).all()


def test_exp2_weights_of_integer_exponents_are_exact() -> None:
    t = np.arange(0, -50, -1, dtype=np.float32)
    assert exp2_weights(t).tolist() == [ONE >> place for place in range(45)] + [0] * 5
    # so close to an integer that the fraction rounds to 1
    assert exp2_weights(np.array([-1e-30, -0.0], dtype=np.float32)).tolist() == [ONE - 2**20, ONE]
    assert exp2_weights(np.array([-45.00001, -np.inf, np.nan], dtype=np.float32)).tolist() == [0, 0, 0]


@pytest.mark.slow
def test_fused_multiply_add_rounds_once() -> None:
    rng = np.random.default_rng(1)
    a, b = ((rng.random(4000) * 2.0 ** rng.integers(-20, 2, 4000)).astype(np.float32) for _ in range(2))
    # the last ones differ by one float64 ulp from the middle of two float32, where double rounding fails
    a, b = np.append(a, [2.0**-30, 1 + 2.0**-12]).astype(np.float32), np.append(b, [2.0**-30, 1 + 2.0**-12])
    b = b.astype(np.float32)
    for addend in (np.float32(1.0), np.float32(1 + 2.0**-23), np.float32(-0.25), np.float32(2.0**-24)):
        found = fma32(a, b, addend)
        for x, y, rounded in zip(a.tolist(), b.tolist(), found.tolist(), strict=True):
            assert rounded == nearest_float32(Fraction(x) * Fraction(y) + Fraction(float(addend)))


def nearest_float32(value: Fraction) -> float:
    """Round an exact number to float32, ties to even, by comparing its neighbours."""
    guess = np.float32(float(value))
    near = [np.nextafter(guess, np.float32(-np.inf)), guess, np.nextafter(guess, np.float32(np.inf))]
    return float(min(near, key=lambda x: (abs(Fraction(float(x)) - value), int(x.view(np.uint32)) & 1)))


def test_weight_sum_of_the_largest_vocabulary_fits_in_63_bits() -> None:
    row = read_row(np.zeros(2**19 - 1, dtype=np.float32), RowSampling())
    assert row.total == (2**19 - 1) * ONE < 2**63
    assert fixed_point.draw(row.weights, 2**32 - 1) == 2**19 - 2


# -- the cache ---------------------------------------------------------------------------------------------------------


def test_cache_entries_of_accepted_nodes_move_behind_the_text() -> None:
    path = np.array([[2, 5, 6, -1], [1, 2, 3, -1], [-1, -1, -1, -1], [1, 3, -1, -1]], dtype=np.int32)
    moves = kv_moves(path, np.array([10, 0, 7, 1], dtype=np.int32))
    assert moves.tolist() == [[0, 12, 11], [0, 15, 12], [0, 16, 13], [3, 4, 3]]
    cache = np.arange(4 * 20 * 3).reshape(4, 20, 3)
    moved = compact_kv(cache, moves)
    assert moved[0, 10:14].tolist() == cache[0, [10, 12, 15, 16]].tolist()
    assert moved[3, :5].tolist() == cache[3, [0, 1, 2, 4, 4]].tolist()
    assert np.array_equal(moved[1:3], cache[1:3])


def test_moves_can_be_applied_sequentially_in_place() -> None:
    rng = np.random.default_rng(4)
    for _ in range(50):
        nodes = np.sort(rng.choice(np.arange(1, 12), rng.integers(0, 8), replace=False))
        path = np.full((1, 11), -1, dtype=np.int32)
        path[0, : len(nodes)] = nodes
        cache = rng.integers(0, 1000, (1, 20, 2))
        moves, in_place = kv_moves(path, np.array([3], dtype=np.int32)), cache.copy()
        for row, source, destination in moves.tolist():
            in_place[row, destination] = in_place[row, source]
        assert np.array_equal(in_place, compact_kv(cache, moves))


def test_empty_moves_leave_the_cache_unchanged() -> None:
    moves = kv_moves(np.full((2, 3), -1, dtype=np.int32), np.zeros(2, dtype=np.int32))
    assert moves.shape == (0, 3)
    assert np.array_equal(compact_kv(np.ones((2, 4)), moves), np.ones((2, 4)))
