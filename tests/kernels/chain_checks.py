# SPDX-License-Identifier: Apache-2.0
"""Chains computed by hand: every edge to the last bit, invalid rows and tokens, ties and limits."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tests.kernels.batches import (
    HALF,
    HALVES,
    INF,
    LAST,
    NAN,
    QUARTER,
    ChainRule,
    one_chain,
    outcomes,
    sampled_at,
    uniform_bits,
)
from trtspec.kernels.bit_exact import BAD_DRAFT, DRAFT_NONFINITE, EMPTY, NONFINITE, ChainBatch, DraftKind


def check_draws_at_every_edge(verify: ChainRule) -> None:
    """Each token has its share of the uniforms to the last bit; a token without weight is never drawn."""
    edges = [0, HALF - 1, HALF, 3 * QUARTER - 1, 3 * QUARTER, 7 * QUARTER // 2 - 1, 7 * QUARTER // 2, LAST]
    assert sampled_at(verify, HALVES, edges) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert sampled_at(verify, (-INF, 0, -INF, 0, -INF), [0, HALF - 1, HALF, LAST]) == [1, 1, 3, 3]
    assert sampled_at(verify, (-46, 0, -46), [0, LAST]) == [1, 1], "below 2^-45 there is no weight"


def check_deterministic_tokens_at_every_edge(verify: ChainRule) -> None:
    """A token of probability 1/4 is accepted for a quarter of the uniforms, and is not drawn after its rejection."""
    results = [outcomes(verify, one_chain([HALVES, HALVES], [1], [u, 0]))[0] for u in (0, QUARTER - 1, QUARTER, LAST)]
    assert results == [([1], 0, 0), ([1], 0, 0), ([], 0, 0), ([], 0, 0)]
    # the first of the weights 4, 1, 1 has the uniforms up to 2/3 of 2^32
    nexts = [
        outcomes(verify, one_chain([HALVES, HALVES], [1], [LAST, u]))[0][1] for u in (2863311530, 2863311531, LAST)
    ]
    assert nexts == [0, 2, 3]


def check_sampled_tokens_at_every_edge(verify: ChainRule) -> None:
    """u * q < p with q = 5/8 and p = 1/8, and then the residual 1/4, 1/8, 0, 1/8."""
    draft = {"draft": [(0.25, 0.125, 0.625, 0.0)], "draft_kind": DraftKind.PROBABILITIES}
    results = [
        outcomes(verify, one_chain([HALVES, HALVES], [2], uniforms, **draft))[0]
        for uniforms in ((0, 0), (858993459, LAST), (858993460, 0), (LAST, HALF - 1), (LAST, HALF), (LAST, LAST))
    ]
    assert results == [([2], 0, 0), ([2], 3, 0), ([], 0, 0), ([], 0, 0), ([], 1, 0), ([], 3, 0)]


def check_draft_logits_are_scaled_too(verify: ChainRule) -> None:
    """top_k reduces the draft 1/2, 1/4, 1/4 to 2/3, 1/3, and the target to 2/3 and 1/3 of other tokens."""
    rows, draft = [(0, -1, -3), (0, -1, -3)], [(-1, 0, -9)]
    results = [
        outcomes(verify, one_chain(rows, [1], (u, 0), draft=draft, top_k=2))[0][0]
        for u in (0, HALF - 1, HALF + 1, LAST)
    ]
    assert results == [[1], [1], [], []], "u * 2/3 < 1/3"


def check_no_token_of_weight_zero_is_accepted(verify: ChainRule) -> None:
    """Uniform 0 accepts only tokens with weight, whatever their origin."""
    row = (0, -INF, 0)
    for draft in (None, [(0.5, 0.5, 0.0)], [(0.0, 0.0, 1.0)]):
        draft_args = {} if draft is None else {"draft": draft, "draft_kind": DraftKind.PROBABILITIES}
        assert outcomes(verify, one_chain([row, row], [1], (0, 0), **draft_args))[0][0] == []
        assert outcomes(verify, one_chain([row, row], [0], (0, 0), **draft_args))[0][0] == [0]


def check_what_the_draft_cannot_have_given_counts_as_deterministic(verify: ChainRule) -> None:
    """A row of zeros, or a token of probability zero: the token is accepted by its own share, and not drawn after a
    rejection.
    """
    for draft in ([(0, 0, 0, 0)], [(0.5, 0, 0.5, 0)]):
        draft_args = {"draft": draft, "draft_kind": DraftKind.PROBABILITIES}
        for uniforms in ((QUARTER - 1, 7), (QUARTER, 7), (LAST, 2863311531), (LAST, LAST)):
            batch = one_chain([HALVES, HALVES], [1], uniforms, **draft_args)
            assert outcomes(verify, batch) == outcomes(verify, replace(batch, draft=None))


def check_without_a_residual_the_target_is_drawn(verify: ChainRule) -> None:
    """A draft that is nowhere below the target, as can happen by rounding."""
    row, draft = (0, 0, -INF), [(1, 1, 0)]
    for uniform, token in ((0, 0), (HALF - 1, 0), (HALF, 1), (LAST, 1)):
        batch = one_chain([row, row], [1], (HALF, uniform), draft=draft, draft_kind=DraftKind.PROBABILITIES)
        assert outcomes(verify, batch) == [([], token, 0)]


def check_ill_rows(verify: ChainRule) -> None:
    """NaN, +inf and masked rows end the walk with a defined token, at the first position and after others."""
    ill = [
        ((1, NAN, 3, 2), 2, NONFINITE),
        ((1, 2, INF, -INF), 1, NONFINITE),
        ((-INF, NAN, -5, -5), 2, NONFINITE),
        ((-INF, -INF, -INF, -INF), -1, EMPTY),
        ((NAN, -INF, INF, -INF), -1, EMPTY | NONFINITE),
    ]
    for row, token, status in ill:
        assert outcomes(verify, one_chain([row], [], [LAST])) == [([], token, status)]
        assert outcomes(verify, one_chain([row, HALVES], [2], (0, 0))) == [([], token, status)]
        assert outcomes(verify, one_chain([HALVES, row], [0], (0, 0))) == [([0], token, status)]
        assert outcomes(verify, one_chain([HALVES, row], [0], (0, 0), temperature=0.0)) == [([0], token, status)]
        assert outcomes(verify, one_chain([HALVES, row], [1], (LAST, 0))) == [([], 0, 0)], "a row that is not read"


def check_tokens_outside_the_vocabulary(verify: ChainRule) -> None:
    """They are rejected, the next token is drawn from the target, and later positions are ignored."""
    for token in (-1, 4, 5000, 2**31 - 1, -(2**31)):
        for how in ({}, {"draft": [(0, 0, 0, 0)] * 2}, {"temperature": 0.0}):
            batch = one_chain([HALVES] * 3, [0, token], (0, 0, 0), **how)
            assert outcomes(verify, batch) == [([0], 0, BAD_DRAFT)]
        assert outcomes(verify, one_chain([HALVES] * 2, [token], (0, LAST))) == [([], 3, BAD_DRAFT)]


def check_ill_rows_of_the_draft(verify: ChainRule) -> None:
    """The token is rejected when its row is read, and the next one is drawn from the target."""
    rejected = ([], 3, DRAFT_NONFINITE)
    for draft in ((0, NAN, 0, 0), (0, 0, INF, 0), (-INF, -INF, -INF, -INF)):
        assert outcomes(verify, one_chain([HALVES] * 2, [0], (0, LAST), draft=[draft])) == [rejected]
    draft_args = {"draft_kind": DraftKind.PROBABILITIES}
    for value in (NAN, -0.5, 1.5, INF, -INF):
        own, another = [(value, 0.5, 0.5, 0)], [(0.75, value, 0.25, 0)]
        assert outcomes(verify, one_chain([HALVES] * 2, [0], (0, LAST), draft=own, **draft_args)) == [rejected]
        assert outcomes(verify, one_chain([HALVES] * 2, [0], (LAST, LAST), draft=another, **draft_args)) == [rejected]
        assert outcomes(verify, one_chain([HALVES] * 2, [0], (0, LAST), draft=another, **draft_args)) == [([0], 3, 0)]
        assert outcomes(verify, one_chain([HALVES] * 2, [0], (0, 0), draft=own, **draft_args, temperature=0.0)) == [
            ([0], 0, 0)
        ]


def check_ties(verify: ChainRule) -> None:
    """Among equals lower ids come first, for the argmax and for truncation; -0 equals 0."""
    assert sampled_at(verify, (-1, 2, 2, 0), [LAST], temperature=0.0) == [1]
    assert sampled_at(verify, (-1, 0.0, -0.0), [LAST], temperature=0.0) == [1]
    assert sampled_at(verify, (-1, -0.0, 0.0), [LAST], temperature=0.0) == [1]
    assert sampled_at(verify, (-1, 1, 1, 1), [0, HALF - 1, HALF, LAST], top_k=2) == [1, 1, 2, 2]
    assert sampled_at(verify, (-1, -0.0, 0.0, -0.0), [0, LAST], top_k=2) == [1, 2]
    assert sampled_at(verify, (1, 1, 1, 1), [0, LAST], top_p=0.5) == [0, 1]
    assert sampled_at(verify, (1, 1, 1, 1), [0, LAST], top_p=0.50001) == [0, 2]
    assert sampled_at(verify, np.zeros(1000), [0, LAST], top_k=700) == [0, 699]
    assert sampled_at(verify, np.zeros(1000), [0, LAST], top_k=700, top_p=0.25) == [0, 174]


def check_truncation_at_its_limits(verify: ChainRule) -> None:
    """Results of top_k and top_p at and beyond the ends of their ranges."""
    assert sampled_at(verify, HALVES, [LAST], top_k=1) == [0]
    assert sampled_at(verify, HALVES, [LAST], top_p=0.0) == [0]
    assert sampled_at(verify, HALVES, [LAST], top_p=-1.0) == [0]
    assert sampled_at(verify, HALVES, [LAST], top_p=0.5) == [0], "1/2 is not below 1/2"
    assert sampled_at(verify, HALVES, [LAST], top_p=0.75) == [1]
    assert sampled_at(verify, HALVES, [LAST], top_p=0.875) == [2]
    assert sampled_at(verify, HALVES, [LAST], top_k=3, top_p=0.8) == [1], "6/7 is not below 0.8"
    for how in (
        {"top_k": 0},
        {"top_k": -3},
        {"top_k": 4},
        {"top_k": 9},
        {"top_p": 1.0},
        {"top_p": 2.0},
        {"top_p": NAN},
    ):
        assert sampled_at(verify, HALVES, [0, LAST], **how) == [0, 3]
    assert sampled_at(verify, (-INF, 0, -INF, -1), [0, LAST], top_k=3) == [1, 3]


def check_extreme_numbers(verify: ChainRule) -> None:
    """Temperatures and logits at the limits of float32."""
    for temperature in (0.0, -1.0, 1e-45, 1e-39, NAN):
        assert sampled_at(verify, (1, 2, 2, 0), [LAST], temperature=temperature) == [1]
    assert sampled_at(verify, (3e38, -3e38, 3e38), [0, HALF - 1, HALF, LAST]) == [0, 0, 2, 2]
    # 1 has exp(-1) of the weight of 3e38; the distance to -3e38 is not representable in float32
    assert sampled_at(verify, (3e38, -3e38, -INF, 1), [0, HALF, LAST], temperature=3e38) == [0, 0, 3]
    assert sampled_at(verify, (1e-45, 0, -1e-45), [0, LAST]) == [0, 2]
    assert sampled_at(verify, (5, -7, -INF), [0, HALF - 1, HALF, LAST], temperature=INF) == [0, 0, 1, 1]


def check_lengths_and_greedy_requests(verify: ChainRule) -> None:
    """Positions beyond a request's length do not count; without uniforms requests are greedy."""
    rows, tokens, uniforms = [HALVES, (-1, 0, -2, -2), HALVES], [0, 1], (0, 0, LAST)
    for length, accepted in ((-1, []), (0, []), (1, [0]), (2, [0, 1]), (9, [0, 1])):
        assert outcomes(verify, one_chain(rows, tokens, uniforms, lengths=length)) == [(accepted, 3, 0)]
    greedy = replace(one_chain(rows, tokens, uniforms), uniforms=None)
    assert outcomes(verify, greedy) == [([0, 1], 0, 0)]
    assert outcomes(verify, replace(greedy, tokens=np.array([[0, 2]], dtype=np.int32))) == [([0], 1, 0)]


def check_reduced_draft_vocabulary(verify: ChainRule) -> None:
    """The draft's columns 0, 1, 2 are the ids 1, 2, 5 of six; the other ids have probability zero."""
    columns = np.array([-1, 0, 1, -1, -1, 2], dtype=np.int32)
    rng = np.random.default_rng(3)
    narrow = rng.dirichlet(np.ones(3), (40, 2)).astype(np.float32)
    wide = np.zeros((40, 2, 6), dtype=np.float32)
    wide[..., [1, 2, 5]] = narrow
    wide_logits = np.where(wide > 0, np.log(np.maximum(wide, 1e-30)), -INF).astype(np.float32)
    batch = ChainBatch(
        target=rng.normal(size=(40, 3, 6)).astype(np.float32),
        tokens=rng.choice([0, 1, 2, 5], (40, 2)).astype(np.int32),
        draft=wide,
        draft_kind=DraftKind.PROBABILITIES,
        uniforms=uniform_bits(rng.random((40, 3))),
    )
    assert outcomes(verify, replace(batch, draft=narrow, draft_column=columns)) == outcomes(verify, batch)
    draft_args = replace(batch, draft=wide_logits, draft_kind=DraftKind.LOGITS)
    by_columns = replace(draft_args, draft=np.ascontiguousarray(wide_logits[..., [1, 2, 5]]), draft_column=columns)
    assert outcomes(verify, by_columns) == outcomes(verify, draft_args)
    assert len({len(tokens) for tokens, _, _ in outcomes(verify, draft_args)}) == 3
