# SPDX-License-Identifier: Apache-2.0
"""The functions of `trtspec`, called as docs/python.md shows them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

import trtspec
from trtspec.core.errors import GateNotMet
from trtspec.core.paths import recipes_dir

QUICKSTART = recipes_dir() / "quickstart.yaml"
SET = ("gates.min_speedup=null", "gates.min_acceptance=null")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> trtspec.BuildResult:
    root = tmp_path_factory.mktemp("api")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRTSPEC_CACHE", str(root / "cache"))
        return trtspec.build(trtspec.load_recipe(QUICKSTART, overrides=SET), out=root / "quickstart")


def test_import_loads_neither_torch_nor_pydantic() -> None:
    code = "import sys, trtspec; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert not {"torch", "pydantic", "numpy", "typer"} & {*done.stdout.split()}


def test_every_public_name_resolves() -> None:
    assert {*trtspec.__all__} <= {*dir(trtspec), *trtspec._TYPES}
    for name in trtspec.__all__:
        assert getattr(trtspec, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        trtspec.nope  # noqa: B018


def test_load_recipe_raises_one_error_with_all_diagnostics(tmp_path: Path) -> None:
    with pytest.raises(trtspec.RecipeError) as raised:
        trtspec.load_recipe(QUICKSTART, overrides=["speculation.draft_len=x", "engine.max_batch_size=-1"])
    assert {each.path for each in raised.value.diagnostics} == {"speculation.draft_len", "engine.max_batch_size"}
    with pytest.raises(trtspec.TrtspecError):
        trtspec.load_recipe(tmp_path / "missing.yaml")


def test_check_returns_problems_and_does_not_raise() -> None:
    assert trtspec.check(QUICKSTART).errors == []
    found = trtspec.check(trtspec.load_recipe(QUICKSTART, overrides=["target.model=./nowhere"]))
    assert [each.path for each in found.errors] == ["target.model"]


def test_plan_lists_steps_and_memory() -> None:
    planned = trtspec.plan(str(QUICKSTART))
    assert isinstance(planned, trtspec.Build)
    assert [step.name for step in planned.plan.steps][:2] == ["convert-target", "convert-draft"]
    assert planned.memory()[0].weights_bytes > 0


@pytest.mark.slow
@pytest.mark.integration
def test_build_prints_nothing_and_returns_the_manifest(
    built: trtspec.BuildResult, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRTSPEC_CACHE", str(built.artifact.parent / "cache"))
    names: list[str] = []

    class Names:
        def step_started(self, step: object, total_bytes: int) -> None: ...
        def step_advanced(self, step: object, n: int) -> None: ...
        def step_message(self, step: object, text: str) -> None: ...
        def step_finished(self, step: object, status: str, seconds: float) -> None:
            names.append(status)

    recipe = trtspec.load_recipe(QUICKSTART, overrides=SET)
    again = trtspec.build(recipe, out=built.artifact, observer=Names())
    assert (again.status, again.manifest) == ("unchanged", built.manifest)
    assert {*names} == {"hit"}
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
@pytest.mark.integration
def test_generate_streams_the_text_that_it_returns(built: trtspec.BuildResult) -> None:
    pieces: list[str] = []
    generated = trtspec.generate(built.artifact, '[{"id": 612,', max_tokens=8, on_text=pieces.append)
    assert generated.text == "".join(pieces)
    assert len(generated.result.ids) == 8


@pytest.mark.slow
@pytest.mark.integration
def test_verify_returns_a_result_and_rejects_a_wrong_manifest(
    built: trtspec.BuildResult, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TRTSPEC_STATE", str(tmp_path))
    monkeypatch.setenv("TRTSPEC_CACHE", str(built.artifact.parent / "cache"))
    found = trtspec.verify(built.artifact, max_tokens=8, manifest=f"sha256:{built.manifest}")
    assert found.ok, found.as_dict()
    with pytest.raises(trtspec.TrtspecError, match="manifest"):
        trtspec.verify(built.artifact, manifest=f"sha256:{'0' * 64}")


def test_deploy_of_missing_artifact_raises(tmp_path: Path) -> None:
    assert issubclass(GateNotMet, trtspec.TrtspecError)
    with pytest.raises(trtspec.TrtspecError):
        trtspec.deploy(tmp_path / "nothing")


def blocks() -> list[str]:
    page = (QUICKSTART.parents[1] / "docs" / "python.md").read_text(encoding="utf-8")
    return re.findall(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


@pytest.mark.slow
@pytest.mark.integration
def test_python_page_examples_run(tmp_path: Path) -> None:
    (tmp_path / "recipes").symlink_to(recipes_dir())
    first, _, errors = blocks()
    places = {"TRTSPEC_CACHE": str(tmp_path / "cache"), "TRTSPEC_STATE": str(tmp_path / "state")}
    run = partial(subprocess.run, cwd=tmp_path, env=os.environ | places, capture_output=True, text=True, timeout=300)
    done = run([sys.executable, "-c", first], check=False)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("published build/quickstart manifest sha256:")
    assert lines[-1].startswith("True [('files', 'holds')"), lines
    broken = errors.replace('"recipes/quickstart.yaml"', '"recipes/nope.yaml"')
    assert "recipes/nope.yaml" in run([sys.executable, "-c", f"import trtspec\n{broken}"], check=True).stdout


def test_python_page_lists_every_function() -> None:
    page = (QUICKSTART.parents[1] / "docs" / "python.md").read_text(encoding="utf-8")
    named = {*re.findall(r"^\| `(\w+)\(", page, re.MULTILINE)}
    assert named == {name for name in trtspec.__all__ if name.islower() and not name.startswith("_")}
    for block in blocks():
        compile(block, "docs/python.md", "exec")
