# SPDX-License-Identifier: Apache-2.0
"""A build with all steps in the store does not need its sources: an empty hub cache causes no download."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest

from tests._support import forked
from tests.cli.test_sources import pickled
from tests.conftest import Run
from trtspec.core.errors import StepError
from trtspec.planning.pipeline import open_store, plan_build, run_build
from trtspec.recipe.load import load_recipe
from trtspec.store.artifact import load_manifest
from trtspec.store.executor import Unobserved

pytestmark = pytest.mark.slow  # complete builds in forks

COMMIT = "0123456789abcdef0123456789abcdef01234567"
WEIGHTS = "checkpoints/target/rank0.safetensors"


def replace_text(recipe: Path, old: str, new: str) -> None:
    text = recipe.read_text()
    assert old in text
    recipe.write_text(text.replace(old, new))


def download(workplace: Path) -> None:
    """Download both models into the hub cache."""
    for role in ("target", "draft"):
        snapshot = workplace / "hub" / f"models--org--{role}" / "snapshots" / COMMIT
        shutil.copytree(workplace / role, snapshot, dirs_exist_ok=True)


@pytest.fixture
def cold(recipe: Path, trtspec: Run, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A recipe of hub models that was built before the hub cache was emptied."""
    for role in ("target", "draft"):
        indent = " " * (2 if role == "target" else 4)
        replace_text(recipe, f"model: ./{role}", f"model: org/{role}\n{indent}revision: {COMMIT}")
    download(recipe.parent)
    built = trtspec("build", recipe)
    assert built.code == 0, built.err
    shutil.rmtree(recipe.parent / "hub")
    return recipe


def no_download(*_: object) -> None:
    pytest.fail("nothing is to be downloaded")


def test_stored_artifact_is_published_again_without_a_download(
    cold: Path, trtspec: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trtspec.checkpoints.resolve.fetch_snapshot", no_download)
    assert "nothing to do" in trtspec("build", cold).out
    again = trtspec("build", cold, "--out", "again", "--json")
    assert {step["status"] for step in again.document["steps"]} == {"hit"}
    root = cold.parent
    assert load_manifest(root / "again").files == load_manifest(root / "build" / "tiny").files
    assert trtspec("check", cold).code == 0
    assert trtspec("plan", cold, "--detailed-exitcode").code == 0


def test_build_from_the_store_works_offline(cold: Path) -> None:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HUB_CACHE": str(cold.parent / "empty")}
    argv = [sys.executable, "-m", "trtspec", "build", str(cold), "--out", "again"]
    built = forked.run(argv, 60, env=environment)
    assert built.returncode == 0, built.stderr
    assert (cold.parent / "again" / "manifest.json").is_file()


def test_store_of_a_partial_build_continues_elsewhere_without_a_download(
    cold: Path, trtspec: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(cold.parent / "cache")
    shutil.rmtree(cold.parent / "build")
    download(cold.parent)
    assert trtspec("build", cold, "--until", "convert").code == 0
    shutil.rmtree(cold.parent / "hub")
    shutil.copytree(cold.parent / "cache" / "store", cold.parent / "elsewhere" / "store")
    monkeypatch.setenv("TRTSPEC_CACHE", str(cold.parent / "elsewhere"))
    monkeypatch.setattr("trtspec.checkpoints.resolve.fetch_snapshot", no_download)
    built = trtspec("build", cold, "--json")
    assert built.code == 0, built.err
    assert {step["name"]: step["status"] for step in built.document["steps"]} == {
        "convert-target": "hit",
        "convert-draft": "hit",
        "copy-tokenizer": "built",
        "copy-prompts": "built",
        "emit-repository": "built",
    }


def test_build_after_a_partial_one_downloads_what_remaining_steps_read(
    cold: Path, trtspec: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(cold.parent / "cache")
    download(cold.parent)
    assert trtspec("build", cold, "--until", "convert-target").code == 0
    shutil.rmtree(cold.parent / "hub")
    downloads: list[object] = []

    def fetch(model: object, *_: object) -> None:
        downloads.append(model)
        download(cold.parent)

    monkeypatch.setattr("trtspec.checkpoints.resolve.fetch_snapshot", fetch)
    assert trtspec("build", cold).code == 0
    assert downloads


@pytest.mark.parametrize("backend", ["vllm", "llmapi"])
def test_copied_checkpoints_need_no_second_download(
    backend: str, cold: Path, trtspec: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    download(cold.parent)
    wanted = ("--set", f"engine.backend={backend}", "--out", "copied")
    assert trtspec("build", cold, *wanted).code == 0
    shutil.rmtree(cold.parent / "hub")
    monkeypatch.setattr("trtspec.checkpoints.resolve.fetch_snapshot", no_download)
    assert "nothing to do" in trtspec("build", cold, *wanted).out


def test_missing_store_entry_triggers_a_download(cold: Path, trtspec: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = trtspec("plan", cold, "--set", "target.dtype=float16", "--json").document["steps"]
    assert next(step["name"] for step in planned if step["status"] == "miss") == "convert-target"
    monkeypatch.setattr("trtspec.checkpoints.resolve.fetch_snapshot", lambda *_: download(cold.parent))
    assert trtspec("build", cold, "--set", "target.dtype=float16").code == 0
    half = (cold.parent / "build" / "tiny" / WEIGHTS).read_bytes()
    replace_text(cold, f"model: org/target\n  revision: {COMMIT}", "model: ./target\n  dtype: float16")
    shutil.rmtree(cold.parent / "cache")
    assert trtspec("build", cold).code == 0
    assert (cold.parent / "build" / "tiny" / WEIGHTS).read_bytes() == half


def test_remembered_headers_are_never_converted(cold: Path, trtspec: Run) -> None:
    build, store = plan_build(load_recipe(cold)), open_store()
    assert build.weights_absent
    for step in build.plan.steps:
        store.remove(step.key)
    with pytest.raises(StepError, match="the file changed during the build"):
        run_build(build, cold.parent / "again", store, Unobserved())
    assert not store.peek(build.plan.steps[0].key).entry


@pytest.mark.parametrize("harm", ["damaged", "cleared"])
def test_damaged_or_cleared_headers_trigger_a_download(
    harm: str, cold: Path, trtspec: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    if harm == "cleared":
        trtspec("cache", "--clear")
    for path in (cold.parent / "cache" / "store" / "entries").rglob("headers.json"):
        path.chmod(0o644)
        path.write_bytes(path.read_bytes().replace(b"sha", b"bad").replace(b"F32", b"F16").replace(b"BF16", b"I16"))
    assert "not in the hub cache" in trtspec("check", cold).out
    monkeypatch.setattr("trtspec.checkpoints.resolve.fetch_snapshot", lambda *_: download(cold.parent))
    assert trtspec("build", cold).code == 0
    shutil.rmtree(cold.parent / "hub")
    assert trtspec("check", cold).code == 0


@pytest.mark.slow  # a separate interpreter opens pickles
def test_pickled_checkpoint_needs_no_second_download(cold: Path, trtspec: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    pin = pickled(cold.parent / "target")
    replace_text(cold, f"model: org/target\n  revision: {COMMIT}", f"model: org/target\n  revision: {COMMIT}\n  {pin}")
    download(cold.parent)
    assert trtspec("build", cold).code == 0
    for name in ("hub", "cache/unpickled"):
        shutil.rmtree(cold.parent / name)
    monkeypatch.setattr("trtspec.checkpoints.resolve.fetch_snapshot", no_download)
    assert "nothing to do" in trtspec("build", cold).out


@pytest.mark.slow  # a complete build
def test_draft_head_needs_no_second_download(cold: Path, trtspec: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests._support.tiny import PAIR_VOCAB, TARGET_SHAPE
    from tests.methods.heads import random_heads, save_heads

    shutil.rmtree(cold.parent / "draft")
    save_heads(cold.parent / "draft", random_heads(2, hidden=TARGET_SHAPE["hidden_size"], vocab=PAIR_VOCAB))
    (cold.parent / "draft" / "medusa_lm_head.safetensors").rename(cold.parent / "draft" / "model.safetensors")
    wanted = ("--set", "speculation.method=medusa", "--set", "speculation.options={choices: [[0], [0, 0]]}")
    wanted += ("--set", "speculation.draft_len=null", "--set", f"speculation.draft.revision={'a' * 40}")
    snapshots = cold.parent / "hub" / "models--org--draft" / "snapshots"
    download(cold.parent)
    (snapshots / COMMIT).rename(snapshots / ("a" * 40))
    built = trtspec("build", cold, *wanted)
    assert built.code == 0, built.err
    shutil.rmtree(cold.parent / "hub")
    monkeypatch.setattr("trtspec.checkpoints.resolve.fetch_snapshot", no_download)
    assert "nothing to do" in trtspec("build", cold, *wanted).out


def test_missing_hub_client_error_names_the_extra(
    workplace: Path, trtspec: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hint does not name a dependency of the client."""
    for package in ("huggingface_hub", "tqdm"):
        monkeypatch.setitem(sys.modules, package, None)
    refused = trtspec("build", "mistral-7b-ngram")
    assert refused.code == 1
    assert refused.err.endswith(
        "error: this needs huggingface_hub, which is not installed\nhint: pip install 'trtspec[hub]'\n"
    )
