# SPDX-License-Identifier: Apache-2.0
"""The reference rules give exactly the target's distribution: every draft and every result is enumerated."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tests.kernels import reference
from tests.kernels.distribution import Array, Case, Rule, Table, boxes, is_lossless, text_distribution
from tests.kernels.scenarios import BLOCKS, CHAINS, TREES, Scenario, boxes_of, verify_chain, verify_tree
from trtspec.kernels.chain import VerifyResult

KINDS = {"chain": CHAINS, "block": BLOCKS, "tree": TREES}
SCENARIOS = {f"{kind}, {name}": s for kind, of in KINDS.items() for name, s in of.items()}


def distribution_by(rule: Rule, scenario: Scenario, zeros: bool = False) -> tuple[Array, Table]:
    """Return the distribution of the text with a rule instead of the scenario's own, and the target's."""
    found = [box for case in scenario.cases(0, zeros) for box in boxes(rule, case, scenario.columns)]
    target = scenario.target(0, zeros)
    return text_distribution(found, target), target


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("zeros", [False, True])
def test_text_distribution_equals_the_targets(name: str, zeros: bool) -> None:
    scenario = SCENARIOS[name]
    for seed in range(2):
        target = scenario.target(seed, zeros)
        assert is_lossless(text_distribution(boxes_of(scenario, seed, zeros), target), target)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCENARIOS)
def test_every_reachable_node_can_be_accepted(name: str) -> None:
    paths = {tuple(box.result.path) for box in boxes_of(SCENARIOS[name], 0, False)}
    scenario = SCENARIOS[name]
    reachable = {node for node, parent in enumerate(scenario.parents) if parent >= 0}
    deep = {node for node in reachable if scenario.parents[node] > 0} if scenario.limit == 1 else set()
    assert {path[-1] for path in paths if path} == reachable - deep


def accepting_all(case: Case, uniforms: Array) -> VerifyResult:
    return VerifyResult([1, 2], reference.pick(case.target_probs[2], uniforms[-1]))


def by_best_match(case: Case, uniforms: Array) -> VerifyResult:
    best = case.target_probs.argmax(-1)
    path = [1, 2] if list(best[:2]) == list(case.tokens[1:]) else [1] if best[0] == case.tokens[1] else []
    return VerifyResult(path, reference.pick(case.target_probs[len(path)], uniforms[-1]))


def against_the_first_target(case: Case, uniforms: Array) -> VerifyResult:
    """Test every sibling against the target instead of the residual after its earlier siblings."""
    node, path, left = 0, [], case.target_probs[0]
    draft, untested = case.draft_probs[0], reference.children(case.parents, 0)
    while untested:
        child = untested.pop(0)
        proposal = draft / draft.sum()
        if reference.accepts(case.target_probs[node], proposal, case.tokens[child], uniforms[child]):
            node, left, draft = child, case.target_probs[child], case.draft_probs[child]
            path.append(child)
            untested = reference.children(case.parents, child)
        else:
            left, draft = reference.residual(left, proposal), reference.without(draft, case.tokens[child])
    return VerifyResult(path, reference.pick(left, uniforms[0]))


def as_if_sampled(case: Case, uniforms: Array) -> VerifyResult:
    """Test deterministic tokens as if they had been sampled from the target's distribution."""
    tree = (case.tokens, case.parents, case.limit, uniforms)
    return reference.verify_sampled(case.target_probs, case.target_probs, *tree)


WRONG = [
    (accepting_all, "chain, sampled"),
    (by_best_match, "chain, sampled"),
    (against_the_first_target, "tree, sampled"),
    (as_if_sampled, "tree, deterministic, with zero rows"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("wrong", "name"), WRONG)
def test_wrong_rule_is_detected(wrong: Rule, name: str) -> None:
    assert not is_lossless(*distribution_by(wrong, SCENARIOS[name]))


def without_residual(target: Array, proposal: Array) -> Array:
    return target


def with_replacement(draft: Array, token: int) -> Array:
    return draft


def accepting_on_equality(target: Array, proposal: Array, token: int, uniform: float) -> bool:
    return bool(uniform * proposal[token] <= target[token])


WRONG_PARTS = [
    ("residual", without_residual, "chain, sampled"),
    ("residual", without_residual, "chain, deterministic"),
    ("residual", without_residual, "tree, sampled"),
    ("without", with_replacement, "tree, sampled"),
    ("accepts", accepting_on_equality, "chain, sampled"),
    ("accepts", accepting_on_equality, "tree, sampled"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("part", "wrong", "name"), WRONG_PARTS)
def test_wrong_part_is_detected(part: str, wrong: Callable, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reference, part, wrong)
    scenario = SCENARIOS[name]
    # a token of probability zero can be accepted only if the target has zeros
    assert not is_lossless(*distribution_by(scenario.rule, scenario, zeros=part == "accepts"))


@pytest.mark.slow
def test_sampled_siblings_verified_as_deterministic_are_lossless_with_less_acceptance() -> None:
    """The target's token is drawn independently of the siblings, so their origin does not matter."""
    scenario = TREES["sampled"]

    def as_if_deterministic(case: Case, uniforms: Array) -> VerifyResult:
        return reference.verify_deterministic(case.target_probs, case.tokens, case.parents, case.limit, uniforms)

    def mean_accepted(rule: Rule, columns: tuple[int, ...]) -> float:
        found = [box for case in scenario.cases(0, False) for box in boxes(rule, case, columns)]
        assert is_lossless(text_distribution(found, scenario.target(0, False)), scenario.target(0, False))
        return sum(box.weight * len(box.result.path) for box in found)

    assert mean_accepted(as_if_deterministic, (0, 1, 2, 3, 4)) < mean_accepted(verify_tree, scenario.columns) - 0.01


def test_tree_rule_equals_the_chain_rule_for_a_chain() -> None:
    """Not only the distributions, but also the results for the same uniforms are equal."""
    rng = np.random.default_rng(5)
    for case in CHAINS["sampled"].cases(0, True):
        for uniforms in rng.random((20, 3)):
            assert verify_tree(case, np.roll(uniforms, 1)) == verify_chain(case, uniforms)


def test_typical_acceptance_changes_the_distribution() -> None:
    def typical(case: Case, uniforms: Array) -> VerifyResult:
        return reference.verify_typical(
            case.target_probs, case.tokens, case.parents, case.limit, uniforms[0], threshold=0.09, alpha=0.3
        )

    distribution, target = distribution_by(typical, TREES["deterministic"])
    assert distribution.sum() == pytest.approx(1.0)
    assert not is_lossless(distribution, target)
