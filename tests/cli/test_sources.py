# SPDX-License-Identifier: Apache-2.0
"""End-to-end builds from a hub id and from pickles give the same artifact as the directory."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests._support import forked
from tests._support.hub import COMMIT, Hub, serving
from tests.conftest import Run
from trtspec.store.artifact import load_manifest

pytestmark = pytest.mark.slow  # commands in separate processes, with a local hub

TOKEN = "hf_averysecrettoken"
WEIGHTS = "checkpoints/target/rank0.safetensors"


@pytest.fixture
def hub(recipe: Path, tmp_path: Path) -> Iterator[Hub]:
    """A hub that serves the recipe's target as org/target to clients with the token."""
    shutil.copytree(recipe.parent / "target", tmp_path / "served" / "org" / "target")
    with serving(tmp_path / "served") as hub:
        hub.token = TOKEN
        yield hub


def replace(recipe: Path, old: str, new: str) -> None:
    text = recipe.read_text()
    assert old in text
    recipe.write_text(text.replace(old, new))


def run(command: str, recipe: Path, hub: Hub, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = hub.environment(TRTSPEC_CACHE=str(recipe.parent / "cache"), **variables)
    argv = [sys.executable, "-m", "trtspec", command, str(recipe)]
    return forked.run(argv, env=environment, timeout=120)


def pickled(root: Path) -> str:
    """Convert a checkpoint's weights to a pickle and return its digest pin."""
    torch.save(load_file(root / "model.safetensors"), root / "pytorch_model.bin")
    (root / "model.safetensors").unlink()
    sha256 = hashlib.sha256((root / "pytorch_model.bin").read_bytes()).hexdigest()
    return f"allow_pickle: true\n  sha256: {{pytorch_model.bin: {sha256}}}"


def weights(recipe: Path) -> bytes:
    return (recipe.parent / "build" / "tiny" / WEIGHTS).read_bytes()


@pytest.fixture
def expected(artifact: Path) -> bytes:
    """The target's weights, built from the directory."""
    return (artifact / WEIGHTS).read_bytes()


def test_hub_model_is_downloaded_only_by_build(expected: bytes, recipe: Path, hub: Hub) -> None:
    replace(recipe, "model: ./target", f"model: org/target\n  revision: {COMMIT}")
    shutil.rmtree(recipe.parent / "build")
    for command in ("check", "plan"):
        assert run(command, recipe, hub, HF_TOKEN=TOKEN).returncode == 0
    assert all(asked.range for asked in hub.got("model.safetensors"))
    built = run("build", recipe, hub, HF_TOKEN=TOKEN)
    assert built.returncode == 0, built.stderr
    assert "  download org/target\n" in built.stderr
    assert TOKEN not in built.stdout + built.stderr
    assert weights(recipe) == expected
    assert load_manifest(recipe.parent / "build" / "tiny").recipe.target.revision == COMMIT
    hub.asked.clear()
    again = run("build", recipe, hub)
    assert "nothing to do" in again.stdout
    assert hub.asked == []


def test_inaccessible_hub_model_is_reported_at_its_line(recipe: Path, hub: Hub) -> None:
    replace(recipe, "model: ./target", f"model: org/target\n  revision: {COMMIT}")
    built = run("build", recipe, hub)
    assert built.returncode == 1
    assert "recipe.yaml:4:10  target.model\n  4 │   model: org/target\n" in built.stderr
    assert f"  org/target at commit {COMMIT}: the model does not exist on the hub, or it is private\n" in built.stderr
    assert "  hint: check the name, or set HF_TOKEN to a token with read access\n" in built.stderr
    assert not (recipe.parent / "build").exists()


def test_missing_hub_client_names_the_extra(recipe: Path, trtspec: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    replace(recipe, "model: ./target", f"model: org/target\n  revision: {COMMIT}")
    built = trtspec("build", recipe)
    hint = "pip install 'trtspec[hub]'"
    assert (built.code, built.err.splitlines()[-2:]) == (
        1,
        ["error: this needs huggingface_hub, which is not installed", f"hint: {hint}"],
    )


def test_pinned_pickles_build_the_same_weights(expected: bytes, recipe: Path, trtspec: Run) -> None:
    pin = pickled(recipe.parent / "target")
    refused = trtspec("build", recipe)
    assert refused.code == 1
    assert (
        "pytorch_model.bin is a pickle, and pickles are not opened; convert it to safetensors, or allow" in refused.err
    )
    replace(recipe, "model: ./target", f"model: ./target\n  {pin}")
    for command, stream in (("check", "out"), ("plan", "err")):
        assert "its weights are pickles that were not converted yet" in getattr(trtspec(command, recipe), stream)
    built = trtspec("build", recipe)
    assert built.code == 0, built.err
    assert built.err.startswith(f"  unpickle {recipe.parent}/target\n"), "a long path is not folded"
    assert weights(recipe) == expected
    assert load_manifest(recipe.parent / "build" / "tiny").recipe.target.allow_pickle is True
    assert trtspec("check", recipe).code == 0
    assert "unpickle" not in trtspec("build", recipe).err


def test_pinned_pickles_of_a_hub_model_build_the_same_weights(expected: bytes, recipe: Path, hub: Hub) -> None:
    pin = pickled(hub.root / "org" / "target")
    replace(recipe, "model: ./target", f"model: org/target\n  revision: {COMMIT}\n  {pin}")
    built = run("build", recipe, hub, HF_TOKEN=TOKEN)
    assert built.returncode == 0, built.stderr
    assert weights(recipe) == expected
