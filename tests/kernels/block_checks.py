# SPDX-License-Identifier: Apache-2.0
"""Block verification by hand: shares and probabilities to the last bit, and chains that end early."""

from __future__ import annotations

from tests.kernels.batches import HALF, HALVES, INF, LAST, NAN, ChainRule, one_chain, outcomes
from trtspec.kernels.bit_exact import BAD_DRAFT, DRAFT_NONFINITE, EMPTY, NONFINITE, DraftKind

EIGHTH = 2**29
FIFTH = 858993460  # the first uniform beyond 1/5


def check_a_block_by_hand(verify: ChainRule) -> None:
    """The target covers 1/2 of the first token, and all or 1/8 of both; the surplus between is 1/8 against 1/2."""
    draft = [(0.25, 0.125, 0.25, 0.375), (0.125, 0.125, 0.5, 0.25)]
    draft_args = {"draft": draft, "draft_kind": DraftKind.PROBABILITIES}

    def of(tokens: list[int], *uniforms: int) -> tuple[list[int], int, int]:
        return outcomes(verify, one_chain([HALVES] * 3, tokens, uniforms, **draft_args))[0]

    assert of([2, 0], LAST, LAST, LAST) == ([2, 0], 3, 0), "what the first token lacks the second has"
    assert of([2, 2], LAST, EIGHTH - 1, HALF) == ([2, 2], 1, 0)
    assert of([2, 2], FIFTH - 1, EIGHTH, LAST) == ([2], 0, 0), "only id 0 is above its draft"
    # 1/4 and 1/8 remain of the first row
    assert [of([2, 2], FIFTH, EIGHTH, u) for u in (0, 2863311530, 2863311531)] == [([], 0, 0), ([], 0, 0), ([], 1, 0)]
    # chain verification would accept the first token up to 1/2
    assert outcomes(
        verify, one_chain([HALVES] * 2, [2], (HALF - 1, 0), draft=draft[:1], draft_kind=draft_args["draft_kind"])
    ) == [([2], 0, 0)]


def check_where_a_chain_ends_early(verify: ChainRule) -> None:
    """Before an invalid row or token: the prefix keeps its share, and the status has the reason."""
    for row, token, status in (((1, NAN, 3, 2), 2, NONFINITE), ((-INF,) * 4, -1, EMPTY)):
        rows = [HALVES, row, HALVES]
        assert outcomes(verify, one_chain(rows, [0, 0], (HALF - 1, 0, 0))) == [([0], token, status)]
        assert outcomes(verify, one_chain(rows, [0, 0], (HALF, 0, 0))) == [([], 1, status)]
        masked = [(0, -INF, 0, 0), row, HALVES]
        assert outcomes(verify, one_chain(masked, [1, 0], (0, 0, 0))) == [([], 0, 0)], "a row that is not read"
    for token in (-1, 4, 2**31 - 1):
        assert outcomes(verify, one_chain([HALVES] * 3, [0, token], (HALF - 1, 0, LAST))) == [([0], 3, BAD_DRAFT)]
        assert outcomes(verify, one_chain([HALVES] * 3, [0, token], (HALF, 0, 0))) == [([], 1, BAD_DRAFT)]
    for ill in ((NAN, 0.5, 0.5, 0), (0.5, 0.75, 0, -0.25)):
        draft_args = {"draft": [(0.5, 0.5, 0, 0), ill], "draft_kind": DraftKind.PROBABILITIES}
        assert outcomes(verify, one_chain([HALVES] * 3, [0, 1], (LAST, 0, LAST), **draft_args)) == [
            ([0], 3, DRAFT_NONFINITE)
        ]
    draft_args = {"draft": [(0, 0, INF, 0)]}
    assert outcomes(verify, one_chain([HALVES] * 2, [0], (0, LAST), **draft_args)) == [([], 3, DRAFT_NONFINITE)]
