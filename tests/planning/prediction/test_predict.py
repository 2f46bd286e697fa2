# SPDX-License-Identifier: Apache-2.0
"""Predictions of `plan` and `check` before a build."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import Run
from trtspec.backends.common.memory import MemoryPlan
from trtspec.backends.context import PlanContext
from trtspec.core.gpus import GPUS
from trtspec.planning.check.recipe import check_recipe
from trtspec.planning.memory import largest_batch
from trtspec.planning.prediction.predict import Unpredictable, batches_up_to, predict, scheduled_depth
from trtspec.planning.prediction.speedup import TargetDraftPair
from trtspec.recipe.load import load_recipe
from trtspec.recipe.schema import Speculation
from trtspec.store.plan import DiskNeed, lacking_disk

ON_H200 = ("--set", "engine.backend=tensorrt_llm", "--set", "engine.gpu=h200")


@pytest.fixture(autouse=True)
def _of_any_size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Allow predictions for tiny models, except in the test that checks that they are absent."""
    if "small" not in request.node.name:
        monkeypatch.setattr("trtspec.planning.prediction.predict.LEAST_WEIGHTS", 0)


def predicted(trtspec: Run, recipe: Path, *arguments: str) -> dict[str, Any]:
    planned = trtspec("plan", recipe, *arguments, "--json")
    assert planned.code == 0, planned.err
    found: dict[str, Any] = planned.document["predicted"]
    return found


def pair_of(recipe: Path, *assignments: str) -> TargetDraftPair:
    context = check_recipe(load_recipe(recipe, assignments)).context
    assert context
    return predict(context).pair


def test_predicted_document_matches_the_formulas(recipe: Path, trtspec: Run) -> None:
    found = predicted(trtspec, recipe, *ON_H200, "--set", "engine.max_batch_size=64")
    pair = pair_of(recipe, "engine.backend=tensorrt_llm", "engine.gpu=h200")
    assert (found["why_not"], found["gpu"], found["gpus"]) == ("", "h200", 1)
    assert (found["context_tokens"], found["draft_len"], found["gpu_price"]) == (128, 3, None)
    assert [each["batch"] for each in found["batches"]] == [1, 4, 16, 64]
    for each in found["batches"]:
        assert each["tokens_per_s"] == round(each["batch"] / pair.alone_seconds(each["batch"]), 1)
        assert each["speedup"] == {
            str(rate): round(pair.speedup(rate, 3, each["batch"]), 2) for rate in (0.6, 0.7, 0.8, 0.9)
        }
    by_rate = found["by_acceptance_rate"]
    assert by_rate["0.8"]["tokens_per_step"] == 2.95
    assert by_rate["0.8"]["break_even_batch"] == pair.break_even(0.8, 3)
    assert found["fitted_to"]
    assert {"draft_cost", "speedup_by_acceptance_rate"} < found.keys()  # keys of earlier versions


@pytest.mark.parametrize(("limit", "largest"), [(100, 9), (104, 9), (105, 10), (14, 0), (0, None), (10**6, 4096)])
def test_largest_batch_is_limited_by_the_backends_memory(
    recipe: Path, monkeypatch: pytest.MonkeyPatch, limit: int, largest: int | None
) -> None:
    def memory(context: PlanContext) -> list[MemoryPlan]:
        return [MemoryPlan("0", 5, 10 * context.recipe.engine.max_batch_size, 0, 0, limit)]

    context = check_recipe(load_recipe(recipe)).context
    assert context
    monkeypatch.setattr("trtspec.planning.memory.find_backend", lambda name: SimpleNamespace(memory=memory))
    assert largest_batch(context) == largest


def test_gpu_price_gives_dollars_per_million_tokens(recipe: Path, trtspec: Run) -> None:
    found = predicted(trtspec, recipe, *ON_H200, "--gpu-price", "3.6")
    for each in found["batches"]:
        cost = each["dollars_per_million_tokens"]
        assert cost["alone"] == pytest.approx(3.6 / 3600 / each["tokens_per_s"] * 1e6, rel=1e-3)
        assert cost["0.8"] == pytest.approx(cost["alone"] / each["speedup"]["0.8"], rel=1e-2, abs=1e-4)
    shown = trtspec("plan", recipe, *ON_H200, "--gpu-price", "3.6").out
    assert "dollars per million tokens" in shown
    assert "dollars per million tokens" not in trtspec("plan", recipe, *ON_H200).out


def test_negative_gpu_price_is_rejected(recipe: Path, trtspec: Run) -> None:
    refused = trtspec("plan", recipe, "--gpu-price", "-1")
    assert (refused.code, refused.out) == (1, "")
    assert "--gpu-price" in refused.err


def test_draft_model_has_a_best_placement(recipe: Path, trtspec: Run) -> None:
    placed = predicted(trtspec, recipe, *ON_H200)["placement"]
    assert placed["best"] in {place["where"] for place in placed["places"] if place["fits"]}
    assert f"the draft is fastest on {placed['best']}" in trtspec("plan", recipe, *ON_H200).out


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ((), "its engine runs on a CPU"),
        (("--set", "engine.backend=llmapi"), "the GPU is unknown: set engine.gpu"),
    ],
)
def test_unpredictable_speed_is_reported_with_the_reason(
    recipe: Path, trtspec: Run, arguments: tuple[str, ...], why: str
) -> None:
    assert predicted(trtspec, recipe, *arguments)["why_not"].startswith(why)
    shown = trtspec("plan", recipe, *arguments).out
    assert f"tokens/s and larger batches are not predicted: {why}" in shown
    assert "no speed is predicted" not in shown, "one was, by the models' sizes"
    assert "trtllm-build" not in shown
    assert "break" not in shown


def test_small_target_is_not_predicted(recipe: Path, trtspec: Run) -> None:
    assert predicted(trtspec, recipe, *ON_H200)["why_not"].startswith("the target is smaller than any")
    assert trtspec("check", recipe, *ON_H200, "--set", "engine.max_batch_size=512", "--json").document["problems"] == []


def test_table_has_speedups_by_batch_and_acceptance_rate(recipe: Path, trtspec: Run) -> None:
    large = (*ON_H200, "--set", "engine.max_batch_size=64")
    batches = predicted(trtspec, recipe, *large)["batches"]
    shown = trtspec("plan", recipe, *large).out.splitlines()
    title = "predicted speed-up on 1 h200 by batch and acceptance rate; sequences of 128 tokens, draft_len 3"
    names, *rows = shown[shown.index(title) + 1 :]
    assert names.split() == ["batch", "alone", "tok/s", "0.6", "0.7", "0.8", "0.9"]
    for row, each in zip(rows, batches, strict=False):
        speedups = [f"{speedup:.2f}x" for speedup in each["speedup"].values()]
        assert row.split() == [str(each["batch"]), f"{each['tokens_per_s']:.0f}", *speedups]
    assert rows[4].split() == ["break-even", "batch", "1", "1", "1", "1"]
    assert "the memory holds 4096 sequences of 256 tokens" in rows


def test_gpus_with_an_unknown_link_are_not_predicted_together(recipe: Path) -> None:
    sets = ("engine.backend=tensorrt_llm", "engine.gpu=dgx-spark", "target.parallel.tensor=2")
    context = check_recipe(load_recipe(recipe, sets)).context
    assert context
    with pytest.raises(Unpredictable, match="dgx-spark has an unknown link"):
        predict(context)


def test_model_of_unknown_shape_is_not_predicted(recipe: Path) -> None:
    context = check_recipe(load_recipe(recipe, ("engine.backend=tensorrt_llm", "engine.gpu=h200"))).context
    assert context
    context.sources["target"].config.pop("num_attention_heads")
    with pytest.raises(Unpredictable, match="the model's shape is unknown: lacks 'num_attention_heads'"):
        predict(context)


def test_check_warns_of_a_batch_where_drafting_never_pays(recipe: Path, trtspec: Run) -> None:
    many = ("--set", "speculation.draft_len=24", "--set", "engine.max_batch_size=512")
    problems = trtspec("check", recipe, *ON_H200, *many, "--json").document["problems"]
    (warned,) = [problem for problem in problems if problem["code"] == "never-pays"]
    assert warned["severity"] == "warning"
    assert warned["path"] == "engine.max_batch_size"
    assert (
        "with 512 concurrent requests, drafting 24 consecutive tokens is slower than the target alone"
        in warned["message"]
    )
    assert "predicted" in warned["message"]


def test_check_does_not_warn_with_an_unknown_gpu(recipe: Path, trtspec: Run) -> None:
    many = ("--set", "speculation.draft_len=24", "--set", "engine.max_batch_size=512")
    problems = trtspec("check", recipe, "--set", "engine.backend=llmapi", *many, "--json").document["problems"]
    assert "never-pays" not in {problem["code"] for problem in problems}


@pytest.mark.parametrize(("texts", "depth"), [(1, 6), (4, 6), (5, 2), (16, 2), (17, 0)])
def test_schedule_decides_the_draft_depth(texts: int, depth: int) -> None:
    schedule = [{"max_batch": 4, "draft_len": 6}, {"max_batch": 16, "draft_len": 2}]
    speculation = Speculation.model_validate({"method": "draft_target", "schedule": schedule})
    assert scheduled_depth(speculation, 6, texts) == depth
    assert scheduled_depth(Speculation(method="draft_target"), 6, texts) == 6


@pytest.mark.parametrize("gpu", GPUS.values(), ids=lambda gpu: gpu.name)
def test_gpus_have_rates_with_a_source(gpu: Any) -> None:
    """FP8 is twice as fast as 16 bits on GPUs that support it, and memory is not faster than 10 TB/s."""
    assert 1e11 < gpu.bandwidth < 1e13
    assert gpu.flops / gpu.bandwidth > 50
    assert gpu.source.startswith("https://")
    assert gpu.fp8_flops == 0 or gpu.fp8_flops == pytest.approx(2 * gpu.flops, rel=0.03)
    assert bool(gpu.fp8_flops) == gpu.has_fp8


@pytest.mark.parametrize(
    ("most", "batches"),
    [(1, [1]), (2, [1, 2]), (8, [1, 4, 8]), (16, [1, 4, 16]), (64, [1, 4, 16, 64]), (100, [1, 4, 16, 64, 100])],
)
def test_predicted_batches_end_at_max_batch_size(most: int, batches: list[int]) -> None:
    assert batches_up_to(most) == batches


def test_insufficient_disk_space_is_a_warning(recipe: Path, trtspec: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    enough = trtspec("plan", recipe)
    assert "\ndisk for the store: " in enough.out
    assert enough.err == ""
    monkeypatch.setattr("trtspec.store.plan.shutil.disk_usage", lambda path: SimpleNamespace(free=1, total=1, used=0))
    short = trtspec("plan", recipe)
    assert short.code == 0
    assert "warning: not enough disk space for the store: " in short.err
    assert " needed, 1 B free on the file system of " in short.err
    assert "hint: free disk space, or set TRTSPEC_CACHE and --out to other disks" in short.err


def test_needs_on_one_file_system_are_added_up(tmp_path: Path) -> None:
    needs = [DiskNeed("store", tmp_path, 600, 1000), DiskNeed("hub cache", tmp_path / "hub", 400, 1000)]
    assert lacking_disk(needs) == []
    (message,) = lacking_disk([replace(needs[0], needed_bytes=601), needs[1]])
    assert message.startswith("not enough disk space for the store and the hub cache: 1001 B needed, 1000 B free")
