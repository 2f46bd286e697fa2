# SPDX-License-Identifier: Apache-2.0
"""`trtspec tune`: successive halving that resumes after an interruption."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conftest import Run
from trtspec.bench.profile import tune
from trtspec.bench.profile.acceptance import AcceptanceStats, StepCounts
from trtspec.bench.profile.candidates import ProfileCandidate, SampleText
from trtspec.bench.profile.recommend import (
    CandidateMeasurements,
    Recommendation,
    dump_measured,
    read_measured,
    recommend,
)
from trtspec.bench.profile.tune import ResultCache, halve, rung_sizes
from trtspec.methods.base import find_method, methods
from trtspec.recipe.yaml_edit import edit_section

SMALL = ("--num-prompts", 8, "--max-tokens", 24, "--max-draft-len", 3, "--set", "engine.max_batch_size=1")


@pytest.mark.parametrize(
    ("texts", "arms", "sizes"), [(64, 8, [16, 32, 64]), (8, 30, [4, 8]), (3, 9, [3]), (64, 1, [64])]
)
def test_rung_sizes_end_with_all_texts(texts: int, arms: int, sizes: list[int]) -> None:
    assert rung_sizes(texts, arms) == sizes


def test_halving_retains_the_better_half_and_the_first_arm() -> None:
    asked = []

    def score(arm: int, size: int) -> float:
        asked.append((arm, size))
        return float(arm)

    rungs = list(halve(range(7), [4, 8, 16], score))
    assert [[arm for arm, _ in rung.scores] for rung in rungs] == [[6, 5, 4, 3, 2, 1, 0], [6, 5, 4, 3, 0], [6, 5, 4, 0]]
    assert [rung.kept for rung in rungs] == [4, 3, 4]
    assert len(asked) == len(set(asked)) == 16


def test_earlier_of_equal_arms_ranks_first() -> None:
    assert next(halve("abc", [4], lambda arm, size: 1.0)).scores[0][0] == "a"


def test_saved_measurements_are_restored() -> None:
    candidate = ProfileCandidate("ngram", None, {}, True, Path())
    acceptance = {
        2: AcceptanceStats((StepCounts(5, 9, 4, (3, 1), (5, 4)), StepCounts(1, 0, 0, (0, 0), (0, 0))), ("a", ""))
    }
    measured = CandidateMeasurements(candidate, acceptance, {(1, 0): 0.25, (1, 2): 0.5}, {1: (0.125, 0.25)}, 7.5)
    assert read_measured(candidate, json.loads(json.dumps(dump_measured(measured)))) == measured


def test_result_cache_computes_once_and_can_be_cleared(workplace: Path) -> None:
    made = []

    def make(value: int) -> dict[str, int]:
        made.append(value)
        return {"value": value}

    first = ResultCache("tune")
    assert first.get_or_compute(["a", {"b": 1}], lambda: make(1)) == {"value": 1}
    second = ResultCache("tune")
    assert second.get_or_compute(["a", {"b": 1}], lambda: make(2)) == {"value": 1}
    assert second.get_or_compute(["a", {"b": 2}], lambda: make(3)) == {"value": 3}
    assert made == [1, 3]
    for path in second._root.glob("*"):
        path.write_text("{")
    assert ResultCache("tune").get_or_compute(["a", {"b": 2}], lambda: make(4)) == {"value": 4}
    second.clear()
    assert not list(second._root.glob("*"))


@pytest.mark.parametrize("name", sorted(methods()))
def test_variants_are_valid_options_of_their_method(name: str) -> None:
    method = find_method(name)
    given = {"swift": {"skip": {"attention": [1], "mlp": []}}}.get(name, {})
    for options in tune._variants(method, given):
        method.parse(options)
    assert len([*method.variants(method.parse(given))]) == len([*tune._variants(method, given)])


def test_tree_is_tried_at_several_depths_and_chain_at_full_length() -> None:
    own = ProfileCandidate("eagle3", None, {}, True, Path())
    arms = list(tune._arms(own, 4, 6))
    assert [(arm.options, arm.draft_len) for arm in arms[:1]] == [({}, 6)]
    assert [arm.draft_len for arm in arms if arm.options.get("nodes") == 12] == [4, 1, 2, 3, 5, 6]
    assert len({arm.settings for arm in arms}) == len(arms) == 30


def test_medusa_variants_have_trees_of_four_sizes() -> None:
    method = find_method("medusa")
    sizes = [len(change["choices"]) for change in method.variants(method.parse({}))]
    assert sizes == [4, 8, 16, 32]


@pytest.mark.integration
def test_interrupted_tune_resumes_at_the_interrupted_measurement(
    recipe: Path, trtspec: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The third measurement is interrupted; the next run completes it and the rest, with the same result."""
    real, calls = tune.measure, []

    def measure(arm: ProfileCandidate, texts: Sequence[SampleText], *rest: Any) -> CandidateMeasurements:
        calls.append((arm.settings, len(texts)))
        if len(calls) == 3:
            raise KeyboardInterrupt
        return real(arm, texts, *rest)

    monkeypatch.setattr(tune, "measure", measure)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": "the rest " * many}) + "\n" for many in range(1, 9)))
    asked = ("tune", recipe, *SMALL, "--prompts", prompts, "--json")
    assert trtspec(*asked).code == 130
    document = trtspec(*asked).document
    assert calls[3] == calls[2]
    assert len(set(calls)) == len(calls) - 1
    first, last = document["rounds"]
    assert (first["prompts"], last["prompts"]) == (4, 8)
    assert len(first["tried"]) == 4
    assert sum(each["kept"] for each in first["tried"]) == 2
    for each in last["tried"]:
        low, high = each["interval"]
        assert low <= each["speedup"] <= high
    mine = tmp_path / "mine.yaml"
    mine.write_text(edit_section(recipe.read_text(), "speculation", document["recommendation"]["speculation"]))
    assert yaml.safe_load(mine.read_text())["speculation"]["method"] in ("draft_target", "none")


def test_recipe_without_speculation_has_nothing_to_tune(workplace: Path, trtspec: Run) -> None:
    outcome = trtspec("tune", "quickstart", "--set", "speculation={method: none}")
    assert outcome.code == 1
    assert "nothing to tune" in outcome.err


@pytest.mark.integration
def test_tune_that_recommends_none_reports_the_reason_and_the_effect_of_write(
    recipe: Path, trtspec: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(found: Sequence[CandidateMeasurements], batch: int) -> Recommendation:
        """Return the recommendation for steps that take ten times as long with drafts."""
        slower = [
            replace(each, seconds={case: one * (10 if case[1] else 1) for case, one in each.seconds.items()})
            for each in found
        ]
        return recommend(slower, batch)

    monkeypatch.setattr(tune, "recommend", slow)
    shown = trtspec("tune", recipe, *SMALL)
    assert shown.out.startswith("Do not speculate: the best option tried, draft_target (./draft), is expected to be ")
    assert "that is less than 1.02 times, which is within noise; use the target alone." in shown.out
    assert "--write would disable draft_target (./draft)\n" in shown.out
    assert "draft_target" in recipe.read_text()
    document = trtspec("tune", recipe, *SMALL, "--write", "--json")
    assert document.document["decision"] == "do_not_ship"
    assert document.document["verdict"].startswith("Do not speculate: ")
    assert document.document["recommendation"]["method"] == "none"
    assert f"{recipe}: speculation disabled (was draft_target (./draft)): the best " in document.err
    assert yaml.safe_load(recipe.read_text())["speculation"] == {"method": "none"}
