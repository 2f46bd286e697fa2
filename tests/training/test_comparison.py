# SPDX-License-Identifier: Apache-2.0
"""A draft is published only if it is better overall and not worse on any kind."""

from __future__ import annotations

from random import Random

import pytest

from trtspec.bench.profile.acceptance import StepCounts, acceptance_change
from trtspec.training.evaluation import DraftComparison
from trtspec.training.texts import HELD_OUT, TrainingText

TEXTS = 40


def counts(mean: float, seed: int) -> list[StepCounts]:
    """Return texts of about 20 steps with this mean number of tokens per step."""
    draw = Random(seed)
    return [
        StepCounts(20, 100, accepted, (accepted,), (100,))
        for accepted in (round(20 * (mean - 1) + draw.uniform(-4, 4)) for _ in range(TEXTS))
    ]


def compare(**means: tuple[float, float]) -> DraftComparison:
    """Return the verdict on kinds with these means before and after; kinds named `kept...` are to be kept."""
    texts, before, after = [], [], []
    for kind, (first, second) in means.items():
        texts += [TrainingText(HELD_OUT, kind, kind.startswith("kept"), str(n), (1,), (1, 2)) for n in range(TEXTS)]
        before += counts(first, seed=1)
        after += counts(second, seed=1 if first == second else 2)
    return DraftComparison.of(texts, before, after)


def test_draft_better_on_all_kinds_is_accepted() -> None:
    found = compare(a=(2.0, 3.0), b=(2.0, 2.5))
    assert not found.rejections
    assert [each.label for each in found.kinds] == ["better", "better"]


def test_draft_without_gain_is_rejected() -> None:
    assert compare(a=(2.0, 2.0)).rejections == [
        "all held-out prompts gain 0.00 (0.00 to 0.00) tokens per step, which may be chance"
    ]


def test_loss_on_one_kind_is_rejected_despite_gains_on_others() -> None:
    rejections = compare(a=(2.0, 4.0), b=(3.0, 2.5)).rejections
    assert len(rejections) == 1
    assert rejections[0].startswith("b: -0.46 (")


def test_regression_kind_must_not_lose_and_need_not_gain() -> None:
    assert not compare(a=(2.0, 3.0), kept=(3.0, 3.0)).rejections
    assert len(compare(a=(2.0, 3.0), kept=(3.0, 2.8)).rejections) == 1


def test_gain_on_regression_kinds_only_is_rejected() -> None:
    assert compare(a=(2.0, 2.0), kept=(2.0, 4.0)).rejections


def test_regression_kind_loss_above_two_percent_is_worse_despite_wide_interval() -> None:
    texts = [TrainingText(HELD_OUT, "kept", True, str(n), (1,), (1, 2)) for n in range(2)]
    new = [TrainingText(HELD_OUT, "a", False, str(n), (1,), (1, 2)) for n in range(TEXTS)]
    wide = ([StepCounts(10, 50, 30), StepCounts(10, 50, 10)], [StepCounts(10, 50, 10), StepCounts(10, 50, 20)])
    found = DraftComparison.of([*new, *texts], counts(2.0, 1) + wide[0], counts(3.0, 2) + wide[1])
    kept = found.kinds[-1]
    assert kept.change.low < 0 < kept.change.high
    assert kept.is_worse


@pytest.mark.parametrize(("prompts", "refused"), [(1, 1), (5, 1), (6, 0)])
def test_gain_on_fewer_than_six_prompts_is_rejected(prompts: int, refused: int) -> None:
    """One prompt has a zero-width interval, and five may all gain by chance."""
    texts = [TrainingText(HELD_OUT, "a", False, str(n), (1,), (1, 2)) for n in range(prompts)]
    found = DraftComparison.of(texts, [StepCounts(10, 50, 5)] * prompts, [StepCounts(10, 50, 20)] * prompts)
    assert found.whole.change.low > 0
    assert len(found.rejections) == refused


def test_confidence_interval_is_paired() -> None:
    """For texts that differ much and improve slightly, only a paired test is significant."""
    before = [StepCounts(10, 50, accepted) for accepted in range(0, 40, 2)]
    after = [StepCounts(10, 50, accepted + 1) for accepted in range(0, 40, 2)]
    change = acceptance_change(before, after)
    assert change.value == pytest.approx(0.1)
    assert change.low > 0.09


@pytest.mark.parametrize(("prompts", "before", "after", "is_worse"), [
    (3, 200, 199, False), (3, 200, 150, True), (6, 200, 199, True),
])  # fmt: skip
def test_small_loss_on_few_prompts_is_not_worse(prompts: int, before: int, after: int, is_worse: bool) -> None:
    texts = [TrainingText(HELD_OUT, "a", False, str(n), (1,), (1, 2)) for n in range(prompts)]
    counts = [[StepCounts(100, 500, accepted)] * prompts for accepted in (before, after)]
    (found,) = DraftComparison.of(texts, *counts).kinds
    assert found.change.high < 0
    assert found.is_worse == is_worse
