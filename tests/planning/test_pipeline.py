# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.conftest import Run
from trtspec.backends.common.convert import Calibrate, ConvertCheckpoint
from trtspec.core.diagnostics import RecipeError
from trtspec.core.paths import calibration_prompts, recipes_dir
from trtspec.planning import pipeline
from trtspec.planning.pipeline import Build, open_store, plan_build, run_build
from trtspec.planning.prediction.speedup import expected_speedup
from trtspec.recipe.load import load_recipe
from trtspec.store import records
from trtspec.store.artifact import load_manifest
from trtspec.store.executor import Unobserved


def plan(recipe: Path, *overrides: str) -> Build:
    return plan_build(load_recipe(recipe, overrides))


def test_artifact_layout_maps_directories_to_steps(recipe: Path) -> None:
    build = plan(recipe)
    assert {directory: step.name for directory, step in build.artifact.steps.items()} == {
        "checkpoints/target": "convert-target",
        "checkpoints/draft": "convert-draft",
        "tokenizer": "copy-tokenizer",
        "prompts": "copy-prompts",
        "model_repository": "emit-repository",
    }
    without = plan(recipe, "gates.prompts=null").artifact.steps
    assert list(without) == [each for each in build.artifact.steps if each != "prompts"]


@pytest.mark.slow
def test_step_keys_do_not_depend_on_the_location(recipe: Path, pair_master: Path, tmp_path: Path) -> None:
    here = [step.key for step in plan(recipe).plan.steps]
    shutil.copytree(pair_master, tmp_path / "elsewhere")
    assert [step.key for step in plan(tmp_path / "elsewhere" / "recipe.yaml").plan.steps] == here


def test_target_with_a_draft_head_has_the_bare_key_of_the_plain_target() -> None:
    names = ("quickstart", "quickstart-eagle3")
    targets = [plan(recipes_dir() / f"{name}.yaml").artifact.steps["checkpoints/target"] for name in names]
    assert targets[0].key != targets[1].key
    assert [step.bare_key for step in targets if isinstance(step, ConvertCheckpoint)] == [targets[0].key] * 2


def test_planning_writes_nothing(recipe: Path) -> None:
    plan(recipe).status(open_store())
    assert not (recipe.parent / "cache" / "store").exists()


def test_plan_of_a_large_unread_source_has_provisional_keys(
    recipe: Path, trtspec: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "READ_WHILE_PLANNING", 1000)
    assert not plan(recipe).is_read
    steps = trtspec("plan", recipe, "--json").document["steps"]
    assert steps[0]["why"] == "never built; the key is provisional because the source is not hashed yet"
    assert plan_build(load_recipe(recipe), read_all=True).is_read


@pytest.mark.slow
def test_second_build_hashes_no_files_again(recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    build = plan_build(load_recipe(recipe), read_all=True)
    for status in ("published", "unchanged"):
        assert run_build(build, recipe.parent / "out", open_store(), Unobserved()).status == status
        # The artifact's hard links have changed the times of the store's files, which the store has accepted.
        monkeypatch.setattr("trtspec.store.entry.file_segments", lambda paths: pytest.fail("hashed") if paths else [])


@pytest.mark.slow
def test_build_of_unread_sources_is_refused(recipe: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(pipeline, "READ_WHILE_PLANNING", 0)
    assert plan(recipe, "target.quantization={weights: fp8}").hashes_sources(open_store())  # during the calibration
    monkeypatch.setattr(pipeline, "hub_digest", lambda path: "0" * 64)
    with pytest.raises(ValueError, match="the sources were not read: plan the build with read_all"):
        run_build(plan(recipe), tmp_path / "out", open_store(), Unobserved())


@pytest.mark.slow
def test_steps_hash_the_sources_that_a_plan_left_unread(
    recipe: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store = open_store()
    with monkeypatch.context() as patched:
        patched.setattr(pipeline, "READ_WHILE_PLANNING", 0)
        patched.setattr("trtspec.store.files.file_digests", lambda paths, on_bytes: [pytest.fail("r") for _ in paths])
        build = plan(recipe)
        assert not build.is_read
        built = run_build(build, tmp_path / "out", store, Unobserved())
    final = plan_build(load_recipe(recipe), read_all=True)
    assert [step.key for step in built.steps] == [step.key for step in final.plan.steps]
    assert [record.key for record in load_manifest(tmp_path / "out").steps] == [step.key for step in built.steps]
    assert load_manifest(tmp_path / "out").target_key == final.target_key
    assert {status.status for status in final.status(store)} == {"hit"}
    assert all(store.uses.of(step.key) for step in built.steps)
    assert not list((store.root / "partial").iterdir())


@pytest.mark.slow
def test_build_reads_first_if_the_store_has_an_entry_of_the_same_shape(
    recipe: Path, trtspec: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "READ_WHILE_PLANNING", 0)
    store, weights = open_store(), recipe.parent / "target" / "model.safetensors"
    assert plan(recipe).hashes_sources(store)
    keys = [step["key"] for step in trtspec("build", recipe, "--json").document["steps"]]
    for path in recipe.parent.glob("target/*"):  # a copy, whose digests are not known
        path.write_bytes(path.read_bytes())
    (store.root.parent / "digests.json").unlink(missing_ok=True)
    assert not plan(recipe).hashes_sources(store)
    steps = trtspec("build", recipe, "--json").document["steps"]
    assert [(step["key"], step["status"]) for step in steps] == [(key, "hit") for key in keys]
    data = bytearray(weights.read_bytes())
    data[len(data) // 2] ^= 1  # other weights of the same shape
    weights.write_bytes(data)
    assert plan(recipe).until("convert-target").hashes_sources(store)


@pytest.mark.slow
def test_plan_estimates_time_from_earlier_builds(recipe: Path, trtspec: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "LEAST_BYTES", 1)
    assert trtspec("plan", recipe, "--json").document["steps"][0]["expected_seconds"] is None
    step = plan(recipe).artifact.steps["checkpoints/target"]
    open_store().rates.note(step, 90.0)
    planned = trtspec("plan", recipe, "--json").document["steps"]
    seconds = {each["name"]: each["expected_seconds"] for each in planned}
    assert seconds["convert-target"] == pytest.approx(90.0)
    assert 0 < seconds["convert-draft"] < 90  # same kind, but smaller
    assert seconds["emit-repository"] is None
    assert "convert-target, convert-draft: about 1 min" in trtspec("plan", recipe).out
    assert trtspec("build", recipe).code == 0
    assert {each["expected_seconds"] for each in trtspec("plan", recipe, "--json").document["steps"]} == {None}


def test_default_lengths_are_limited_by_the_targets_positions(recipe: Path) -> None:
    text = recipe.read_text().replace("  max_input_len: 128\n  max_seq_len: 256\n", "")
    recipe.write_text(text)
    engine = plan(recipe).recipe.engine
    assert (engine.max_input_len, engine.max_seq_len) == (256, 256)  # the target's positions, below the defaults


def test_default_draft_len_comes_from_the_method(recipe: Path) -> None:
    assert plan(recipe, "speculation.draft_len=null").recipe.speculation.draft_len == 5


def test_predicted_speedup_follows_the_size_ratio(recipe: Path) -> None:
    build = plan(recipe)
    assert build.context.target
    assert build.context.draft
    cost = build.context.draft.config.num_parameters / build.context.target.config.num_parameters
    assert 0.02 < cost < 0.1
    predicted = build.predicted()
    assert predicted["draft_cost"] == round(cost, 4)
    assert predicted["speedup_by_acceptance_rate"] == {
        str(rate): round(expected_speedup(rate, 3, cost), 2) for rate in (0.5, 0.6, 0.7, 0.8, 0.9)
    }


def test_recipe_without_a_draft_has_no_prediction(recipe: Path) -> None:
    text = recipe.read_text()
    recipe.write_text(text[: text.index("speculation:")] + text[text.index("engine:") :])
    build = plan(recipe)
    assert build.predicted() == {}
    assert build.memory()[0].draft_bytes == 0
    assert build.recipe.speculation.method == "none"


def test_recipe_with_problems_has_no_plan(recipe: Path) -> None:
    shutil.rmtree(recipe.parent / "draft")
    with pytest.raises(RecipeError, match="no such directory"):
        plan(recipe)


@pytest.mark.slow
def test_manifest_matches_the_build(recipe: Path) -> None:
    build = plan_build(load_recipe(recipe), read_all=True)
    built = run_build(build, recipe.parent / "out", open_store(), Unobserved())
    manifest = load_manifest(built.artifact)
    assert manifest.recipe == build.recipe.without_directories()
    assert [(step.name, step.key) for step in manifest.steps] == [(step.name, step.key) for step in build.plan.steps]
    assert [record.path for record in manifest.files] == sorted(record.path for record in manifest.files)
    assert {"checkpoints/target/rank0.safetensors", "tokenizer/tokenizer.json", "prompts/prompts.jsonl"} <= {
        record.path for record in manifest.files
    }
    assert set(manifest.tools) == {"trtspec", "python", "numpy"}
    assert manifest.backend.name == "embedded"


def test_fp8_target_memory_is_planned_in_float64(recipe: Path) -> None:
    plain = plan_build(load_recipe(recipe)).memory()[0]
    for key in ("weights=fp8_rowwise", "kv_cache=fp8"):
        quantized = plan_build(load_recipe(recipe, [f"target.quantization.{key}"])).memory()[0]
        assert quantized.weights_bytes == 2 * plain.weights_bytes
        assert quantized.kv_cache_bytes == 2 * plain.kv_cache_bytes


def test_kv_cache_reserves_room_for_finished_texts_except_with_a_draft_head() -> None:
    sizes = ["engine.max_batch_size=8", "engine.max_seq_len=512"]
    model, looked_up, head = (
        plan_build(load_recipe(recipes_dir() / f"quickstart{name}.yaml", sizes)).memory()[0].kv_cache_bytes
        for name in ("", "-ngram", "-eagle3")
    )
    assert model == looked_up == 2 * head


def test_calibration_precedes_its_conversion(recipe: Path) -> None:
    build = plan_build(load_recipe(recipe, ["target.quantization.weights=fp8"]))
    names = [step.name for step in build.plan.steps]
    assert names[:3] == ["calibrate-target", "convert-target", "convert-draft"]
    (calibration,) = (step for step in build.plan.steps if isinstance(step, Calibrate))
    assert calibration.prompts.paths == [calibration_prompts()]
    (warning,) = build.diagnostics
    assert (warning.severity, warning.code) == ("warning", "default-prompts")
    rowwise = plan_build(load_recipe(recipe, ["target.quantization.weights=fp8_rowwise"]))
    assert not any(isinstance(step, Calibrate) for step in rowwise.plan.steps)
