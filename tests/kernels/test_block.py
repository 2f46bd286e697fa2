# SPDX-License-Identifier: Apache-2.0
"""Block verification and drafts that end by confidence: exact by enumeration, and wrong rules are detected."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from tests.kernels import reference, test_chain
from tests.kernels.distribution import Array, Box, Case, Rule, Table, boxes, is_lossless, text_distribution
from tests.kernels.scenarios import BLOCKS, Corners, Identity, Scenario, boxes_of, sampled, verify_block, verify_chain
from trtspec.kernels import chain
from trtspec.kernels.chain import VerifyResult
from trtspec.kernels.verifier import DraftVerifier

LONG = BLOCKS["sampled, three tokens"]


def mean_length(found: list[Box]) -> float:
    return sum(box.weight * len(box.result.path) for box in found)


@pytest.mark.slow
@pytest.mark.parametrize("zeros", [False, True])
def test_block_rule_accepts_at_least_as_many_tokens_as_the_chain_rule(zeros: bool) -> None:
    gains = []
    for seed in range(6):
        as_block, by_token = (boxes_of(replace(LONG, rule=rule), seed, zeros) for rule in (verify_block, verify_chain))
        gains.append(mean_length(as_block) - mean_length(by_token))
    assert min(gains) > -1e-12
    assert max(gains) > 0.001


def test_block_of_one_token_is_accepted_like_a_chain() -> None:
    short = Scenario(verify_block, (-1, 0), sampled, depth=1, limit=1)
    lengths = [mean_length(boxes_of(replace(short, rule=rule), 3, False)) for rule in (verify_block, verify_chain)]
    assert abs(lengths[0] - lengths[1]) < 1e-12


# --- in torch


@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("zeros", [False, True])
def test_torch_equals_the_reference_on_both_sides_of_every_threshold(name: str, zeros: bool) -> None:
    corners = Corners.of(boxes_of(BLOCKS[name], 0, zeros))
    assert by_torch(chain.verify_block, corners) == corners.results


def by_torch(rule: Callable[..., list[VerifyResult]], corners: Corners) -> list[VerifyResult]:
    draft_probs = None if corners.draft_probs is None else corners.draft_probs[:, :-1]
    tokens = corners.stack("tokens")[:, 1:]
    lens = [tokens.shape[1]] * len(tokens)
    return rule(corners.stack("target_probs"), tokens, lens, Identity(), draft_probs, corners.uniforms)


class Batch(test_chain.Batch):
    def results(self, rows: slice = slice(None)) -> list[VerifyResult]:
        draft_probs = None if self.draft_probs is None else self.draft_probs[rows]
        how = (self.params(rows), draft_probs, self.uniforms[rows])
        return DraftVerifier.block(self.logits[rows], self.tokens[rows], self.lens[rows], *how)

    rule = staticmethod(reference.verify_block)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("drawn", [True, False])
def test_torch_results_equal_the_reference_in_a_batch_and_alone(dtype: torch.dtype, drawn: bool) -> None:
    lengths = set()
    for seed in range(20):
        batch = Batch(seed, dtype, drawn)
        results = batch.results()
        assert results == [batch.expected(row) for row in range(len(results))]
        assert results == [batch.results(slice(row, row + 1))[0] for row in range(len(results))]
        greedy = DraftVerifier.block(batch.logits, batch.tokens, batch.lens)
        assert results[::3] == greedy[::3] == DraftVerifier.chain(batch.logits, batch.tokens, batch.lens)[::3]
        lengths |= {len(result.path) for result in results}
    assert lengths == {0, 1, 2, 3, 4}


def test_empty_draft_samples_the_target() -> None:
    logits, nothing = torch.tensor([[[0.5, 0.25, 0.25]]]), torch.zeros(1, 0, dtype=torch.int64)
    assert DraftVerifier.block(logits, nothing, [0], Identity(), None, torch.tensor([[0.6]])) == [VerifyResult([], 1)]


# --- chains that end by the draft's confidence


Stop = Callable[[list[Array], tuple[int, ...]], bool]


def by_confidence(rows: list[Array], tokens: tuple[int, ...]) -> bool:
    """Stop before the most probable token of the last row."""
    return bool(np.prod([row.max() for row in rows]) < 0.4)


def by_confidence_of_what_was_drawn(rows: list[Array], tokens: tuple[int, ...]) -> bool:
    before = np.prod([row[token] for row, token in zip(rows, tokens[:-1], strict=False)])
    return bool(before * rows[-1].max() < 0.3)


def by_the_token_that_is_drawn(rows: list[Array], tokens: tuple[int, ...]) -> bool:
    return bool(np.prod([row[token] for row, token in zip(rows, tokens, strict=True)]) < 0.2)


def by_the_last_token(rows: list[Array], tokens: tuple[int, ...]) -> bool:
    return bool(rows[-1][tokens[-1]] < 0.4)


def by_the_best_token_alone(rows: list[Array], tokens: tuple[int, ...]) -> bool:
    return bool(rows[-1].argmax() == tokens[-1])


def stopped(case: Case, stop: Stop) -> Case:
    """Return the case whose draft ends where `stop` decides, given the rows and tokens up to a position."""
    assert case.draft_probs is not None
    tokens = tuple(case.tokens[1:])
    ends = (end for end in range(len(tokens)) if stop(list(case.draft_probs[: end + 1]), tokens[: end + 1]))
    nodes = next(ends, len(tokens)) + 1
    return Case(case.parents[:nodes], case.tokens[:nodes], case.target_probs[:nodes], case.draft_probs[:nodes],
                case.weight, case.limit)  # fmt: skip


def stopped_boxes(scenario: Scenario, seed: int, stop: Stop) -> Iterator[Box]:
    for whole in scenario.cases(seed, False):
        case = stopped(whole, stop)
        columns = range(len(case.tokens))
        order = (*columns[-2::-1], columns[-1]) if scenario.rule is verify_block else tuple(columns)
        yield from boxes(scenario.rule, case, order)


@pytest.mark.parametrize("rule", [verify_block, verify_chain])
@pytest.mark.parametrize("stop", [by_confidence, by_confidence_of_what_was_drawn])
def test_draft_ended_by_confidence_before_its_next_token_is_lossless(rule: Rule, stop: Stop) -> None:
    scenario, lengths = replace(LONG, rule=rule), set()
    for seed in range(2):
        found, target = list(stopped_boxes(scenario, seed, stop)), scenario.target(seed, False)
        assert is_lossless(text_distribution(found, target), target)
        lengths |= {len(box.case.tokens) for box in found}
    assert len(lengths) > 1


@pytest.mark.parametrize("rule", [verify_block, verify_chain])
@pytest.mark.parametrize("stop", [by_the_token_that_is_drawn, by_the_last_token, by_the_best_token_alone])
def test_draft_ended_by_the_token_just_drawn_is_detected(rule: Rule, stop: Stop) -> None:
    scenario = replace(LONG, rule=rule)
    target = scenario.target(0, False)
    assert not is_lossless(text_distribution(list(stopped_boxes(scenario, 0, stop)), target), target)


# --- wrong rules, each with one line changed


def changed(module: ModuleType, old: str, new: str) -> Callable[..., Any]:
    """Return a module's `verify_block` with a part of the module's source replaced."""
    source = inspect.getsource(module)
    assert source.count(old) == 1, f"{old!r} is there {source.count(old)} times"
    names: dict[str, Any] = {"__name__": module.__name__}
    exec(compile(source.replace(old, new), "wrong", "exec"), names)
    names["VerifyResult"] = VerifyResult  # the changed source may define an unequal class of this name
    rule: Callable[..., Any] = names["verify_block"]
    return rule


WRONG = {
    "coverage beyond 1": ("return 1.0 if target >= draft and target > 0.0 else float", "return float"),
    "coverage of the last token alone": ("cover(kept * target_probs", "cover(target_probs"),
    "coverage the other way": ("float(target / draft)", "float(min(1.0, draft / target))"),
    "nothing without a full share": ("float(target / draft) if", "0.0 if"),
    "the target before the token": ("after = target_probs[position + 1]", "after = target_probs[position]"),
    "the draft of the token itself": ("proposal_at(draft_probs, position + 1,", "proposal_at(draft_probs, position,"),
    "a surplus of the whole target": ("np.maximum(kept * target", "np.maximum(target"),
    "a surplus without the draft": ("kept * target - proposal, 0.0)", "kept * target, 0.0)"),
    "the draft's surplus": ("kept * target - proposal", "proposal - kept * target"),
    "the lost share is ignored": ("surplus_mass + (1.0 - kept)", "surplus_mass + 1.0"),
    "the lost share counts in full": ("surplus_mass + (1.0 - kept)", "surplus_mass"),
    "the last token's chance is 1": ("rest, chance = after, kept", "rest, chance = after, 1.0"),
    "the chance of a token before": ("chance = chance_of(rest.sum(), kept)", "chance = kept"),
    "the first prefix that is taken": ("uniforms[position] < chance:", "uniforms[position] < chance and not best:"),
    "none behind one that is not": (
        "uniforms[position] < chance:",
        "uniforms[position] < chance and best == position:",
    ),
    "one uniform for all": ("if uniforms[position] < chance", "if uniforms[0] < chance"),
    "the last place's uniform draws, too": ("else after, uniforms[-1]))", "else after, uniforms[-2]))"),
    "the next token from the target": ("left if left.sum() > 0.0 else after", "after"),
    "the next token from the first surplus": ("best, left = position + 1, rest", "best = position + 1"),
    "the last row for every end": ("after = target_probs[best]", "after, left = target_probs[-1], np.zeros(1)"),
    "one token too few": ("range(1, best + 1)", "range(1, best)"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_wrong_reference_rule_is_detected(name: str) -> None:
    wrong = changed(reference, *WRONG[name])

    def rule(case: Case, uniforms: Array) -> VerifyResult:
        found: VerifyResult = wrong(case.target_probs, None if case.draft_probs is None else case.draft_probs[:-1],
                                    case.tokens[1:], uniforms)  # fmt: skip
        return found

    found = [box for case in LONG.cases(0, False) for box in boxes(rule, case, LONG.columns)]
    target: Table = LONG.target(0, False)
    assert not is_lossless(text_distribution(found, target), target)


def test_token_of_probability_zero_is_not_accepted_at_uniform_zero() -> None:
    wrong = changed(reference, "uniforms[position] < chance", "uniforms[position] <= chance")
    target, draft = np.array([[1.0, 0.0], [0.5, 0.5]]), np.array([[0.5, 0.5]])
    arguments = (target, draft, np.array([1]), np.zeros(2))
    assert reference.verify_block(*arguments).path == []
    assert wrong(*arguments).path == [1]


WRONG_IN_TORCH = {
    "no limit for what is drafted": ("* (places < limits).unsqueeze(-1)", ""),
    "coverage beyond 1": (".clamp_max(1.0)", ""),
    "coverage of the last token alone": ("kept[-1] * target[:, place]", "target[:, place]"),
    "a surplus of the whole target": ("kept.unsqueeze(-1) * target_probs - drafted", "target_probs - drafted"),
    "a negative surplus": ("target_probs - drafted).clamp_min(0.0)", "target_probs - drafted).abs()"),
    "the lost share is ignored": ("surplus + (1.0 - kept)", "surplus + 1.0"),
    "the share for a chance": ("_chance(surplus.sum(-1), kept)", "kept"),
    "the first prefix": ("(taken * places[1:]).amax(1)", "taken.long().cumprod(1).sum(1)"),
    "the next token from the target": ("torch.where(left.sum(-1, keepdim=True) > 0, left, after)", "after"),
    "the first place's uniform draws, too": ("left, after), uniforms[:, -1])", "left, after), uniforms[:, 0])"),
}


@pytest.mark.parametrize("name", WRONG_IN_TORCH)
def test_wrong_torch_rule_is_detected(name: str) -> None:
    wrong = changed(chain, *WRONG_IN_TORCH[name])
    corners = Corners.of(boxes_of(LONG, 0, False))
    if name == "no limit for what is drafted":
        batches = [Batch(seed, torch.float64, True) for seed in range(8)]
        found = [wrong(each.logits, each.tokens, each.lens, each.params(), each.draft_probs, each.uniforms)
                 for each in batches]  # fmt: skip
        assert found != [batch.results() for batch in batches]
    else:
        assert by_torch(wrong, corners) != corners.results
