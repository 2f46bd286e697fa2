# SPDX-License-Identifier: Apache-2.0
"""Errors that would end a build are all reported before any work."""

from __future__ import annotations

import shutil
from collections import namedtuple
from pathlib import Path

import pytest

from tests.conftest import Run
from trtspec.recipe.load import load_recipe
from trtspec.store.artifact import load_manifest

COMMIT = "0123456789abcdef0123456789abcdef01234567"
Usage = namedtuple("Usage", "total used free")


def replace_text(recipe: Path, old: str, new: str) -> None:
    text = recipe.read_text()
    assert old in text
    recipe.write_text(text.replace(old, new))


@pytest.fixture
def small_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(1 << 20, (1 << 20) - 1024, 1024))


def nothing_was_done(workplace: Path) -> bool:
    return not (workplace / "cache" / "store").exists() and not (workplace / "build" / "tiny").is_dir()


def test_build_reports_all_problems_before_starting(recipe: Path, trtspec: Run, small_disk: None) -> None:
    (recipe.parent / "build").mkdir()
    (recipe.parent / "build" / "tiny").write_text("mine")
    replace_text(recipe, "engine:", "engine:\n  gpu: h20o\n  backend: vllm\n  max_num_tokens: 1")
    failed = trtspec("build", recipe, "--json")
    assert failed.code == 1
    assert {each["code"] for each in failed.document["problems"] if each["severity"] == "error"} == {
        "gpu",
        "out-of-range",
        "place",
    }
    for line in (
        "unknown GPU 'h20o'",
        "hint: did you mean 'h200'?",
        "max_num_tokens 1 is less than max_batch_size 4 times 4 tokens to verify",
        "not an artifact; refusing to overwrite",
    ):
        assert line in failed.err
    assert nothing_was_done(recipe.parent)


@pytest.mark.parametrize("backend", ["vllm", "llmapi"])
def test_max_num_tokens_must_cover_a_full_batch_with_drafts(backend: str, recipe: Path, trtspec: Run) -> None:
    replace_text(recipe, "engine:", f"engine:\n  backend: {backend}\n  max_num_tokens: 15")
    assert "hint: at least 16" in trtspec("check", recipe).out
    replace_text(recipe, "max_num_tokens: 15", "max_num_tokens: 16")
    assert trtspec("check", recipe).code == 0


def test_unknown_gpu_is_a_problem_on_every_backend(recipe: Path, trtspec: Run) -> None:
    replace_text(recipe, "engine:", "engine:\n  gpu: h20o")
    for backend in ("auto", "embedded", "vllm", "llmapi", "tensorrt_llm"):
        found = trtspec("check", recipe, "--set", f"engine.backend={backend}", "--json").document["problems"]
        assert [each["message"] for each in found if each["path"] == "engine.gpu"] == ["unknown GPU 'h20o'"]


def test_build_without_trtllm_build_converts_nothing(
    recipe: Path, trtspec: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "/nosuch")
    replace_text(recipe, "engine:", "engine:\n  backend: tensorrt_llm\n  gpu: h200")
    replace_text(recipe, "  max_seq_len: 256", "  max_seq_len: 256\nserving:\n  streaming: false")
    failed = trtspec("build", recipe, "--json")
    assert failed.code == 1
    codes = [each["code"] for each in failed.document["problems"] if each["severity"] == "error"]
    assert codes == ["no-toolchain"], failed.err
    assert "cannot build engines: trtllm-build is not on PATH" in failed.err
    assert nothing_was_done(recipe.parent)


def test_insufficient_disk_space_fails_the_build_before_starting(recipe: Path, trtspec: Run, small_disk: None) -> None:
    failed = trtspec("build", recipe)
    assert failed.code == 1
    assert "not enough disk space for the store at " in failed.err
    assert " KiB needed, 1.0 KiB free" in failed.err
    assert nothing_was_done(recipe.parent)


@pytest.mark.slow
def test_completed_build_requires_no_disk_space(artifact: Path, trtspec: Run, small_disk: None) -> None:
    assert trtspec("build", artifact.parents[1] / "recipe.yaml").code == 0


@pytest.mark.slow
def test_plan_shows_the_required_disk_space(recipe: Path, trtspec: Run) -> None:
    planned = trtspec("plan", recipe, "--json")
    (store,) = planned.document["disk"]
    assert store["free_bytes"] > store["needed_bytes"]
    assert "disk for the store: " in trtspec("plan", recipe).out
    assert trtspec("build", recipe).code == 0
    files = (recipe.parent / "build" / "tiny" / "checkpoints").rglob("*.safetensors")
    written = sum(path.stat().st_size for path in files)
    assert written <= store["needed_bytes"] < written + 100_000
    (store,) = trtspec("plan", recipe, "--json").document["disk"]
    assert store["needed_bytes"] == 0


@pytest.mark.slow
def test_artifact_on_another_disk_counts_as_a_copy(
    artifact: Path, monkeypatch: pytest.MonkeyPatch, trtspec: Run
) -> None:
    monkeypatch.setattr("trtspec.store.plan._device", lambda path: str(path).count("store"))
    _, place = trtspec("plan", artifact.parents[1] / "recipe.yaml", "--json").document["disk"]
    sizes = [record.size for record in load_manifest(artifact).files]
    assert (place["what"], place["needed_bytes"]) == ("artifact", sum(sizes))


def test_interrupted_conversion_requires_only_the_remaining_space(recipe: Path, workplace: Path) -> None:
    from trtspec.planning.pipeline import open_store, plan_build
    from trtspec.store.plan import plan_disk

    store, build = open_store(), plan_build(load_recipe(recipe))
    status = build.status(store)
    (before,) = plan_disk(status, store, workplace)
    left = store.root / "partial" / status[0].key / "files"
    left.mkdir(parents=True)
    (left / "rank0.safetensors").write_bytes(b"x" * 65536)
    (after,) = plan_disk(status, store, workplace)
    assert before.needed_bytes - after.needed_bytes == 65536


def test_problems_are_reported_before_a_download(recipe: Path, trtspec: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trtspec.checkpoints.resolve.fetch_snapshot", lambda *_: pytest.fail("nothing is downloaded"))
    replace_text(recipe, "model: ./target", f"model: org/target\n  revision: {COMMIT}")
    replace_text(recipe, "engine:", "engine:\n  gpu: h20o")
    failed = trtspec("build", recipe, "--out", "/")
    assert failed.code == 1
    assert "unknown GPU 'h20o'" in failed.err
    assert "an artifact needs its own directory" in failed.err
    assert "hub cache" not in failed.err


def test_matrix_build_reports_the_problems_of_all_variants(recipe: Path, trtspec: Run) -> None:
    replace_text(recipe, "name: tiny", "name: tiny\nmatrix:\n  engine.gpu: [h20o, h10o]")
    failed = trtspec("build", recipe)
    assert failed.code == 1
    for gpu in ("h20o", "h10o"):
        assert f"unknown GPU '{gpu}'" in failed.err
