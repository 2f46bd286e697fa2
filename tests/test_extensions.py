# SPDX-License-Identifier: Apache-2.0
"""Each kind of extension, added to a copy of the package as one file or folder, without an edit elsewhere."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import trtspec
from tests._support.tiny import make_llama, make_pair

pytestmark = [pytest.mark.integration, pytest.mark.slow]

PACKAGE = Path(trtspec.__file__).parent
PAGE = (PACKAGE.parent / "docs" / "extending.md").read_text(encoding="utf-8")
TARGET = '''
"""A target that prints where it would serve."""

from trtspec.core.errors import DeployError
from trtspec.deployment.base import DeployTarget


def _deploy(journal, artifact, options):
    raise DeployError(f"nowhere to serve {artifact.root.name}")


TARGET = DeployTarget(deploy=_deploy, stop=lambda name: {})
'''
Run = Callable[..., "subprocess.CompletedProcess[str]"]


def code_of(section: str) -> str:
    """Return the first Python block of a section of docs/extending.md."""
    text = PAGE.split(f"\n## {section}\n")[1]
    return re.search(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[1]


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the package, whose data are those of the clone."""
    root = shutil.copytree(PACKAGE, tmp_path / "site" / "trtspec", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("recipes", "plugins", "model_repository"):
        (tmp_path / "site" / name).symlink_to(PACKAGE.parent / name)
    return root


@pytest.fixture
def run(copy: Path, tmp_path: Path) -> Run:
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("TRTSPEC_")},
        "PYTHONPATH": str(copy.parent),
        "TRTSPEC_CACHE": str(tmp_path / "cache"),
        "TRTSPEC_STATE": str(tmp_path / "state"),
        "OMP_NUM_THREADS": "1",
    }

    def command(*arguments: object, code: int = 0) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, "-m", "trtspec", *map(str, arguments)]
        done = subprocess.run(
            argv, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=300
        )
        assert done.returncode == code, done.stderr
        return done

    return command


def document(done: subprocess.CompletedProcess[str]) -> Any:
    return json.loads(done.stdout)


def test_family_is_added_by_one_file(copy: Path, run: Run, tmp_path: Path) -> None:
    (copy / "families" / "toy.py").write_text(code_of("A family"))
    source = make_llama(tmp_path / "toy")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps(config | {"architectures": ["ToyForCausalLM"]}))
    problem = json.loads(run("inspect", source, "--json", code=1).stdout)["error"]["message"]
    assert "h.0." in problem, "the family was found; the checkpoint has Llama's names"


def test_method_is_added_by_one_folder(copy: Path, run: Run, tmp_path: Path) -> None:
    folder = copy / "methods" / "echo"
    folder.mkdir()
    (folder / "__init__.py").write_text(code_of("A method"))
    (folder / "drafter.py").write_text("from trtspec.methods.echo import DRAFTER\n")
    recipe = make_pair(tmp_path)
    text = recipe.read_text().replace("method: draft_target", "method: echo")
    recipe.write_text(text.replace("  draft:\n    model: ./draft\n", ""))
    assert document(run("check", recipe, "--json"))["ok"]
    run("build", recipe, "--out", tmp_path / "echo")
    assert document(run("generate", tmp_path / "echo", "-p", "thethethe        ", "--json"))["drafted"] > 0


def test_backend_is_added_by_one_folder(copy: Path, run: Run, tmp_path: Path) -> None:
    (copy / "backends" / "toy").mkdir()
    (copy / "backends" / "toy" / "__init__.py").write_text(code_of("A backend"))
    recipe = make_pair(tmp_path)
    recipe.write_text(recipe.read_text().replace("engine:\n", "engine:\n  backend: toy\n"))
    run("build", recipe, "--out", tmp_path / "toy")
    assert json.loads((tmp_path / "toy" / "manifest.json").read_text())["backend"]["name"] == "toy"


def test_deploy_target_is_added_by_one_file(copy: Path, run: Run, tmp_path: Path) -> None:
    (copy / "deployment" / "targets" / "toy.py").write_text(TARGET)
    recipe = make_pair(tmp_path)
    run("build", recipe, "--out", tmp_path / "tiny")
    skipped = ("--skip-gate", "lossless", "--skip-gate", "min_speedup", "--skip-gate", "min_acceptance")
    done = run("deploy", tmp_path / "tiny", "--target", "toy", *skipped, code=1)
    assert "nowhere to serve tiny" in done.stderr
