# SPDX-License-Identifier: Apache-2.0
"""Trees computed by hand: the three modes, and invalid rows and tokens."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from tests.kernels import reference
from tests.kernels.batches import HALF, HALVES, INF, LAST, NAN, QUARTER, TreeRule, one_tree, outcomes
from trtspec.kernels.bit_exact import BAD_DRAFT, DRAFT_NONFINITE, EMPTY, NONFINITE, DraftKind, Mode


def check_tree_of_deterministic_tokens(verify: TreeRule) -> None:
    """The token drawn after a node selects the accepted child, the first among equals."""
    tokens, parents = (9, 1, 0, 1, 3, 2), (-1, 0, 0, 0, 1, 1)
    rows = [HALVES] * 6
    cases = [
        ((0, 0, 0, 0, 0, 0), ([2], 0, 0)),
        ((HALF - 1, 0, LAST, 0, 0, 0), ([2], 3, 0)),
        ((HALF, 0, 0, 0, 0, 0), ([1], 0, 0)),
        ((HALF, LAST, 0, 0, HALF, 0), ([1, 4], 1, 0)),
        ((3 * QUARTER, 0, 0, 0, 0, 0), ([], 2, 0)),
        ((HALF, 7 * QUARTER // 2 - 1, 0, 0, 0, LAST), ([1, 5], 3, 0)),
    ]
    for uniforms, expected in cases:
        assert outcomes(verify, one_tree(rows, tokens, parents, uniforms)) == [expected]
    for limit, expected in (
        (-2, ([], 1, 0)),
        (0, ([], 1, 0)),
        (1, ([1], 3, 0)),
        (2, ([1, 4], 0, 0)),
        (77, ([1, 4], 0, 0)),
    ):
        assert outcomes(verify, one_tree(rows, tokens, parents, (HALF, LAST, 0, 0, 0, 0), limits=limit)) == [expected]


def check_unused_nodes(verify: TreeRule) -> None:
    """A node whose parent does not precede it is not part of the tree, whatever its token."""
    for odd in (-1, -7, 1, 2, 99):
        batch = one_tree([HALVES] * 4, (0, 99, 0, 1), (-1, odd, 0, 2), (0, 0, HALF, LAST))
        assert outcomes(verify, batch) == [([2, 3], 3, 0)]


def check_greedy_trees(verify: TreeRule) -> None:
    """A greedy request follows the target's choices in every mode."""
    tokens, parents = (9, 3, 0, 0, 1, 0), (-1, 0, 0, 1, 2, 2)
    rows = [HALVES, HALVES, (-1, 0, -1, -1), HALVES, (-1, -1, 0, 0), HALVES]
    for mode in Mode:
        for draft in (np.zeros((6, 4)), np.full((6, 4), NAN)):
            batch = one_tree(rows, tokens, parents, [LAST] * 6, mode=mode, temperature=0.0, draft=draft)
            assert outcomes(verify, batch) == [([2, 4], 2, 0)]
            assert outcomes(verify, replace(batch, uniforms=None, temperature=None)) == [([2, 4], 2, 0)]


def check_siblings_at_every_edge(verify: TreeRule) -> None:
    """Two siblings drawn without replacement, and the residual of the first, computed by hand.

    Token 2 is accepted for u * 5/8 < 1/8. Then 1/2, 1/4, 0, 1/4 remain of the target and 2/3, 1/3 of the draft, so
    token 0 is accepted for u * 2/3 < 1/2. Then only token 3 remains, and token 1 is not accepted at any uniform.
    """
    draft = [(0.25, 0.125, 0.625, 0.0)] * 4
    draft_args = {"draft": draft, "draft_kind": DraftKind.PROBABILITIES, "mode": Mode.SAMPLED}
    cases = [
        ((0, 858993459, 0, 0), ([1], 0, 0)),
        ((LAST, 858993460, 3 * QUARTER - 1, 0), ([2], 3, 0)),
        ((0, 858993460, 3 * QUARTER + 1, 0), ([], 3, 0)),
        ((LAST, LAST, LAST, 0), ([], 3, 0)),
    ]
    for uniforms, expected in cases:
        batch = one_tree([HALVES] * 4, (0, 2, 0, 1), (-1, 0, 0, 0), uniforms, **draft_args)
        assert outcomes(verify, batch) == [expected]


def check_children_that_the_draft_cannot_have_given(verify: TreeRule) -> None:
    """Children without remaining weight in the draft, or with a row of zeros, count as deterministic."""
    for draft in ((0, 0, 0, 0), (0, 0, 1, 0)):
        draft_args = {"draft": [draft] * 4, "draft_kind": DraftKind.PROBABILITIES, "mode": Mode.SAMPLED}
        # after the rejection of token 2, 4/7, 2/7 and 1/7 remain; then 2/3 and 1/3
        for uniforms, expected in (
            ((0, LAST, 2454267026, 0), ([2], 0, 0)),
            ((0, LAST, 2454267028, 2863311530), ([3], 0, 0)),
            ((0, LAST, 2454267028, 2863311531), ([], 3, 0)),
        ):
            batch = one_tree([HALVES] * 4, (0, 2, 0, 1), (-1, 0, 0, 0), uniforms, **draft_args)
            assert outcomes(verify, batch) == [expected]


def check_many_siblings(verify: TreeRule) -> None:
    """Seven deterministic siblings of probabilities 1/2, 1/4 ... 1/128: each gets half of the remaining mass."""
    row, parents = [0, -1, -2, -3, -4, -5, -6, -6], [-1, *[0] * 7]
    for taken in range(1, 9):
        uniforms = [LAST, *[HALF] * (taken - 1), *[HALF - 1] * (8 - taken)]
        batch = one_tree([row] * 8, [0, *range(7)], parents, uniforms, mode=Mode.SAMPLED)
        assert outcomes(verify, batch) == [([taken], 7, 0) if taken < 8 else ([], 7, 0)]
    for uniform in (0, LAST):
        batch = one_tree([row] * 6, [0, *range(5)], parents[:6], [uniform, *[LAST] * 5], mode=Mode.SAMPLED)
        assert outcomes(verify, batch) == [([], 5 if uniform == 0 else 7, 0)]


def check_typical_acceptance(verify: TreeRule) -> None:
    """Entropies of 0.8018 and 0.9433 nats: exp(-H) is 0.4485 and 0.3893; the longest path wins, then the first."""
    sharp, flat = np.log((0.7, 0.2, 0.1)), np.log((0.5, 0.4, 0.1))
    rows, tokens, parents = [sharp, flat, flat, sharp, sharp], (0, 0, 1, 2, 1), (-1, 0, 0, 1, 2)
    cases = [
        ((0.5, 0.3, 2), ([2, 4], 1, 0)),
        ((0.5, 0.5, 2), ([1], 1, 0)),
        ((0.09, 0.3, 2), ([1, 3], 1, 0)),
        ((0.11, 0.3, 2), ([2, 4], 1, 0)),
        ((0.09, 0.3, 1), ([1], 1, 0)),
        ((0.09, 0.3, 0), ([], 1, 0)),
    ]
    for (threshold, alpha, limit), expected in cases:
        tree = one_tree(rows, tokens, parents, [3 * QUARTER] * 5, temperature=1.0, limits=limit, mode=Mode.TYPICAL)
        assert outcomes(verify, replace(tree, threshold=threshold, alpha=alpha)) == [expected]


def check_entropies(verify: TreeRule) -> None:
    """The least alpha that rejects a token is p * exp(H), to 1e-3, for many kinds of rows."""
    rng = np.random.default_rng(2)
    for spread, size, top_p in (
        (0.0, 1000, 1.0),
        (2.0, 1000, 1.0),
        (6.0, 50, 1.0),
        (3.0, 32000, 0.9),
        (2.0, 32000, 1.0),
    ):
        row = (rng.normal(size=size) * spread).astype(np.float32)
        distribution = reference.sampling_probs(row.astype(np.float64), 0.8, 0, top_p)
        token = int(distribution.argmax())
        bound = distribution[token] * np.exp(
            -(distribution[distribution > 0] * np.log(distribution[distribution > 0])).sum()
        )
        for alpha, path in ((bound * 0.999, [1]), (bound * 1.001, [])):
            tree = one_tree([row] * 2, (0, token), (-1, 0), (0, 0), temperature=0.8, top_p=top_p, mode=Mode.TYPICAL)
            assert outcomes(verify, replace(tree, threshold=1e9, alpha=float(alpha)))[0][0] == path


def check_ill_rows_of_trees(verify: TreeRule) -> None:
    """The walk ends at an invalid row; rows off its path are not read."""
    for mode in Mode:
        ill = (1, NAN, 3, 2)
        # the first row gives almost all mass to token 0, so typical acceptance accepts it
        sure = (0, -40, -40, -40)
        tree = partial(one_tree, tokens=(9, 0, 1, 2), parents=(-1, 0, 1, 0), uniforms=[HALF] * 4, mode=mode)
        assert outcomes(verify, tree([ill, sure, sure, sure])) == [([], 2, NONFINITE)]
        assert outcomes(verify, tree([sure, ill, sure, sure])) == [([1], 2, NONFINITE)]
        assert outcomes(verify, tree([sure, sure, sure, ill])) == [([1], 0, 0)]
        assert outcomes(verify, tree([sure, (-INF,) * 4, sure, sure])) == [([1], -1, EMPTY)]


def check_tokens_outside_the_vocabulary_in_trees(verify: TreeRule) -> None:
    """They are skipped, reported wherever they are in the tree, and their siblings are tested."""
    sure = (0, -40, -40, -40)
    for mode in Mode:
        for token in (-1, 4, 2**31 - 1):
            batch = one_tree([sure] * 4, (0, token, 0, token), (-1, 0, 0, 1), [HALF] * 4, mode=mode)
            assert outcomes(verify, batch) == [([2], 0, BAD_DRAFT)]


def check_ill_rows_of_the_draft_in_trees(verify: TreeRule) -> None:
    """The walk ends with a token drawn from the target, with the root's uniform."""
    draft_args = {"mode": Mode.SAMPLED, "draft_kind": DraftKind.PROBABILITIES}
    tree = partial(one_tree, [HALVES] * 3, (0, 0, 1), (-1, 0, 0))
    for value in (NAN, -0.5, 1.5, INF):
        own, another = [(value, 0.5, 0.5, 0)] * 3, [(0.75, value, 0.25, 0)] * 3
        assert outcomes(verify, tree((LAST, 0, 0), draft=own, **draft_args)) == [([], 3, DRAFT_NONFINITE)]
        assert outcomes(verify, tree((LAST, LAST, 0), draft=another, **draft_args)) == [([], 3, DRAFT_NONFINITE)]
        assert outcomes(verify, tree((LAST, 0, 0), draft=another, **draft_args)) == [([1], 3, 0)]
    for draft in ((0, NAN, 0, 0), (-INF,) * 4):
        assert outcomes(verify, tree((LAST, 0, 0), draft=[draft] * 3, mode=Mode.SAMPLED)) == [([], 3, DRAFT_NONFINITE)]
