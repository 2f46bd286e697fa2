# SPDX-License-Identifier: Apache-2.0
"""A method from another package: the example of docs/extending.md, installed as a distribution."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests._support import forked
from tests._support.tiny import make_pair

pytestmark = pytest.mark.integration

EXTENDING = Path(__file__).parents[2] / "docs" / "extending.md"
PROMPT = "thethethe        "


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process in which the package Echo is installed."""
    section = EXTENDING.read_text().split("## A method\n")[1]
    code, for_vllm = re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)[:2]
    entries = re.search(r"^```toml\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)[1]
    entries += '[trtspec.methods.vllm]\necho = "echo_vllm:METHOD"\n'
    site = tmp_path_factory.mktemp("site")
    (site / "echo.py").write_text(code)
    (site / "echo_vllm.py").write_text(for_vllm.replace("trtspec.methods.echo", "echo"))
    metadata = site / "echo-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: echo\nVersion: 1.0\n")
    groups = re.sub(r'\[project\.entry-points\."(.*)"\]', r"[\1]", entries).replace('"', "")
    (metadata / "entry_points.txt").write_text(groups)
    return {**os.environ, "PYTHONPATH": str(site), "OMP_NUM_THREADS": "1"}


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TRTSPEC_CACHE", str(tmp_path / "cache"))
    path = make_pair(tmp_path)
    text = (
        path.read_text().replace("method: draft_target", "method: echo").replace("  draft:\n    model: ./draft\n", "")
    )
    path.write_text(text)
    return path


def run(environment: dict[str, str], *argv: object, code: int = 0) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "trtspec", *map(str, argv)]
    cache = {"TRTSPEC_CACHE": os.environ["TRTSPEC_CACHE"]}
    done = forked.run(command, 300, env=environment | cache, kind=forked.Computing)
    assert done.returncode == code, done.stderr
    return done


def test_plugin_method_drafts_without_changing_the_output(
    recipe: Path, installed: dict[str, str], tmp_path: Path
) -> None:
    built = json.loads(run(installed, "build", recipe, "--out", tmp_path / "echo", "--json").stdout)
    run(installed, "build", recipe, "--out", tmp_path / "alone", "--set", "speculation={method: none}")
    said = {
        name: json.loads(run(installed, "generate", tmp_path / name, "-p", PROMPT, "--json").stdout)
        for name in ("echo", "alone")
    }
    assert built["artifact"] == str(tmp_path / "echo")
    assert said["echo"]["token_ids"] == said["alone"]["token_ids"]
    assert said["echo"]["drafted"] > 0


def test_invalid_plugin_options_are_reported_with_their_position(recipe: Path, installed: dict[str, str]) -> None:
    recipe.write_text(recipe.read_text().replace("  draft_len: 3\n", "  draft_len: 3\n  options: {after: 0}\n"))
    document = json.loads(run(installed, "check", recipe, "--json", code=1).stdout)
    (problem,) = document["problems"]
    assert (problem["path"], problem["message"]) == ("speculation.options.after", "after must be at least 1, got 0")


def test_plan_reports_the_plugin_method(recipe: Path, installed: dict[str, str]) -> None:
    document = json.loads(run(installed, "plan", recipe, "--json").stdout)
    assert document["speculation"] == {
        "method": "echo",
        "draft_len": 3,
        "draft_tokens": 3,
        "acceptance": "exact",
        "build_arguments": [],  # no engine builder supports it
    }


def test_plugin_method_is_planned_on_an_engine_that_it_describes(recipe: Path, installed: dict[str, str]) -> None:
    recipe.write_text(recipe.read_text().replace("engine:\n", "engine:\n  backend: vllm\n"))
    planned = run(installed, "plan", recipe, "--json").stdout
    assert '"method": "ngram"' in planned
    assert '"prompt_lookup_max": 2' in planned


def test_method_without_its_plugin_is_unknown(recipe: Path) -> None:
    done = run(dict(os.environ), "check", recipe, "--json", code=1)
    (problem,) = json.loads(done.stdout)["problems"]
    assert problem["message"].startswith("unknown speculation method 'echo'; known: dflash, draft_target, ")


def test_method_without_a_drafter_runs_on_no_backend(recipe: Path, installed: dict[str, str], tmp_path: Path) -> None:
    site = shutil.copytree(installed["PYTHONPATH"], tmp_path / "site")
    (site / "echo-1.0.dist-info" / "entry_points.txt").write_text("[trtspec.methods]\necho = echo:METHOD\n")
    done = run(installed | {"PYTHONPATH": str(site)}, "check", recipe, "--json", code=1)
    (problem,) = json.loads(done.stdout)["problems"]
    assert problem["message"] == "echo runs on no backend"
    assert problem["hint"] == "register its drafter or engines as in docs/extending.md"
