# SPDX-License-Identifier: Apache-2.0
"""Facts from a recipe: the planner decides if it can, and more load never favours drafting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Run
from tests.planning.prediction.published import pair
from trtspec.cli.app import make_command
from trtspec.planning.check.recipe import check_recipe
from trtspec.planning.prediction.predict import Prediction, predict
from trtspec.planning.prediction.speedup import MOST_TEXTS, TargetDraftPair
from trtspec.recipe.load import load_recipe
from trtspec.report.advisor.advice import FACT_OPTIONS, VERDICTS, Advice, AdvisorFact, advise
from trtspec.report.advisor.recipe import predicted_facts, recipe_facts

ON_H200 = ("engine.backend=tensorrt_llm", "engine.gpu=h200")


@pytest.fixture(autouse=True)
def _of_any_size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "small" not in request.node.name:
        monkeypatch.setattr("trtspec.planning.prediction.predict.LEAST_WEIGHTS", 0)


def advised(recipe: Path, *assignments: str, **values: Any) -> Advice:
    told = {name: AdvisorFact(value, "told") for name, value in values.items()}
    planned, notes = recipe_facts(load_recipe(recipe, assignments), told)
    return advise({"recipe": AdvisorFact(str(recipe), "told"), **planned, **told}, notes)


def predicted_pair(recipe: Path) -> tuple[TargetDraftPair, int]:
    context = check_recipe(load_recipe(recipe, ON_H200)).context
    assert context
    found = predict(context)
    return found.pair, found.depth


def test_planned_rule_depends_on_the_load(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The break-even batch size of this pair is 11."""
    monkeypatch.setattr(TargetDraftPair, "speedup", lambda self, rate, depth, texts: 2.0 - texts / 11)
    expected = {1: "faster-as-planned", 9: "faster-as-planned", 10: "hardly-faster-as-planned", 11: "slower-as-planned"}
    for load, rule in expected.items():
        found = advised(recipe, *ON_H200, "engine.max_batch_size=16", concurrency=load)
        assert found.decided_by.name == rule
        assert found.answers["break_even_batch"].value == 11
    assert "the break-even batch size is 11" in found.decided_by.reason(found.answers)
    assert found.first == (f"trtspec build {recipe} --set speculation.method=none",)


def test_waiting_requests_are_not_in_the_batch(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TargetDraftPair, "speedup", lambda self, rate, depth, texts: 2.0 - texts / 11)
    found = advised(recipe, *ON_H200, "engine.max_batch_size=9", concurrency=500)
    assert found.decided_by.name == "faster-as-planned"
    assert found.answers["batch_size"].value == 9


def test_facts_match_the_planners_predictions(recipe: Path) -> None:
    pair, depth = predicted_pair(recipe)
    found = advised(recipe, *ON_H200, concurrency=7.5, acceptance_rate=0.7)
    assert found.answers["predicted_speedup"].value == min(pair.speedup(0.7, depth, texts) for texts in range(1, 9))
    assert found.answers["break_even_batch"].value == (pair.break_even(0.7, depth) or MOST_TEXTS + 1)
    assert found.answers["recipe_method"].value == "draft_target"
    assert found.answers["draft"].value == "model"
    assert found.methods == ("draft_target",)
    usual = advised(recipe, *ON_H200, concurrency=7.5)
    assert usual.answers["predicted_speedup"].value == min(pair.speedup(0.8, depth, texts) for texts in range(1, 9))


DRAFTED = [
    {"gpu": "h100", "target": "llama-3.1-8b-instruct", "draft": "eagle3-llama3.1-instruct-8b"},
    {"gpu": "rtx3090", "target": "llama-3.1-8b-instruct", "draft": "eagle3-llama3.1-instruct-8b"},
    {"gpu": "a100-80gb", "target": "mixtral-8x7b-instruct-v0.1", "draft": "llama-3.2-1b-instruct", "tensor": 2},
]


@pytest.mark.parametrize("row", DRAFTED, ids=lambda row: f"{row['target']}-{row['gpu']}")
def test_more_load_never_favours_drafting(row: dict[str, Any], recipe: Path) -> None:
    """Published models, one of them a mixture of experts, where larger batches read more experts."""
    large = load_recipe(recipe, ["engine.max_batch_size=4096"]).recipe
    found, ranks, speedups = Prediction(pair(row), 3, ()), [], []
    for load in (0.5, 1, 2, 3, 5, 8, 13, 30, 64, 200, 500, 5000):
        told = {"concurrency": AdvisorFact(load, "told")}
        planned = predicted_facts(found, large, told)
        speedups.append(planned["predicted_speedup"])
        known = {name: AdvisorFact(value, "planned") for name, value in planned.items()}
        ranks.append(VERDICTS.index(advise(told | known).speculate))
    assert ranks == sorted(ranks, reverse=True)
    assert speedups == sorted(speedups, reverse=True)
    is_dense = "mixtral" not in row["target"]  # verifying 4 tokens reads most experts, one token reads two of eight
    assert ranks[0] == VERDICTS.index("yes" if is_dense else "no")


def test_recipe_without_a_load_decides_only_for_a_pair_that_never_pays(
    recipe: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TargetDraftPair, "speedup", lambda self, rate, depth, texts: 2.0 - texts / 11)
    found = advised(recipe, *ON_H200)
    assert found.decided_by.name == "nothing-decides"
    assert "slower-as-planned" in found.not_told["--concurrency",]
    assert not any("RECIPE" in options for options in found.not_told)
    monkeypatch.setattr(TargetDraftPair, "speedup", lambda self, rate, depth, texts: 0.9)
    assert advised(recipe, *ON_H200).decided_by.name == "never-pays-as-planned"


def test_insufficient_memory_for_the_draft_decides(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trtspec.report.advisor.recipe.largest_batch", lambda context: 0)
    assert advised(recipe, *ON_H200, concurrency=1).decided_by.name == "does-not-fit"


def test_memory_left_is_reported_only_for_the_target_alone(recipe: Path) -> None:
    alone = advised(recipe, *ON_H200, "speculation={method: none}", concurrency=1)
    assert alone.answers["memory_left_gb"].value > 100
    assert "recipe_method" not in alone.answers
    assert alone.notes == ("no prediction for tiny: nothing is drafted",)
    assert "memory_left_gb" not in advised(recipe, *ON_H200).answers


def test_small_target_is_decided_by_rules_of_thumb(recipe: Path) -> None:
    found = advised(recipe, *ON_H200, concurrency=2)
    assert found.decided_by.name == "few-requests"
    assert "smaller than any" in found.notes[0]
    assert not any("--concurrency" in options for options in found.not_told)


def test_advise_command_prints_the_advice_for_a_recipe(recipe: Path, trtspec: Run) -> None:
    shown = trtspec("advise", recipe, "--set", ON_H200[0], "--set", ON_H200[1], "--concurrency", 2)
    assert shown.code == 0
    assert shown.out.splitlines()[-1].startswith("speculate: ")
    wrong = trtspec("advise", recipe, "--set", "speculation.draft_len=99")
    assert (wrong.code, wrong.out) == (1, "")
    assert "draft_len must be at most 64" in wrong.err


def test_every_fact_has_a_command_option() -> None:
    options = {name for each in make_command().commands["advise"].params for name in each.opts}
    assert {*FACT_OPTIONS.values()} <= options
