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
"""A target whose server is a process that sleeps."""

import subprocess

from trtspec.core.processes import start_time, stop_session
from trtspec.deployment.journal import DeploymentJournal, RunningDeployment, deploy_document, staged_record
from trtspec.deployment.ports import former_ports, reserved_ports
from trtspec.deployment.target import DeployTarget


def _deploy(journal, artifact, options):
    with reserved_ports(journal, options, former=former_ports(journal.read(), "toy", options)) as ports:
        journal.log.write_text("toy serves\\n")
        log = journal.log.open("ab")
        process = subprocess.Popen(["sleep", "60"], stdout=log, stderr=log, start_new_session=True)
        own = {"pid": process.pid, "started": start_time(process.pid), "target": "toy", "detached": True}
        record = journal.write(staged_record(journal.name, artifact, host=options.host, **own, **ports))
        return RunningDeployment(journal, journal.move(record, "live"))


def _stop(name):
    journal = DeploymentJournal(name)
    record = journal.read_existing()
    stop_session(record.pid, record.started, 10.0)
    return deploy_document(journal.move(record, "stopped")) | {"was_running": True}


TARGET = DeployTarget(deploy=_deploy, stop=_stop)
'''
Run = Callable[..., "subprocess.CompletedProcess[str]"]


def code_of(section: str, number: int = 0) -> str:
    """Return a Python block of a section of docs/extending.md, by default the first one."""
    text = PAGE.split(f"\n## {section}\n")[1].split("\n## ")[0]
    return re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)[number]


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
            argv, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=120
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


@pytest.fixture
def echo(copy: Path, tmp_path: Path) -> Path:
    """The recipe of a method that a folder of the copy adds."""
    folder = copy / "methods" / "echo"
    folder.mkdir()
    (folder / "__init__.py").write_text(code_of("A method"))
    (folder / "drafter.py").write_text("from trtspec.methods.echo import DRAFTER\n")
    recipe = make_pair(tmp_path)
    text = recipe.read_text().replace("method: draft_target", "method: echo")
    recipe.write_text(text.replace("  draft:\n    model: ./draft\n", ""))
    return recipe


def test_method_is_added_by_one_folder(echo: Path, run: Run, tmp_path: Path) -> None:
    assert document(run("check", echo, "--json"))["ok"]
    run("build", echo, "--out", tmp_path / "echo")
    assert document(run("generate", tmp_path / "echo", "-p", "thethethe        ", "--json"))["drafted"] > 0


SGLANG = """
from trtspec.backends.sglang.versions import SglangMethod

METHOD = SglangMethod("NGRAM", lambda options, shape: {"speculative_ngram_max_trie_depth": shape.max_depth})
"""
ENGINES = """
from trtspec.backends.tensorrt_llm.specs import EXTERNAL, EngineMethod

METHOD = EngineMethod(EXTERNAL)
"""


@pytest.mark.parametrize(
    ("backend", "code", "key", "expected"),
    [
        ("vllm", code_of("A method", 1), "speculative_config", {"method": "ngram", "prompt_lookup_max": 2}),
        ("sglang", SGLANG, None, {"speculative_algorithm": "NGRAM", "speculative_ngram_max_trie_depth": 3}),
    ],
    ids=("vllm", "sglang"),
)
def test_method_runs_on_an_engine_by_one_file_of_its_folder(
    backend: str, code: str, key: str | None, expected: dict[str, Any], echo: Path, copy: Path, run: Run, tmp_path: Path
) -> None:
    """Its options become the engine's arguments."""
    echo.write_text(echo.read_text().replace("engine:\n", f"engine:\n  backend: {backend}\n"))
    assert "echo" in run("check", echo, "--json", code=1).stdout
    (copy / "methods" / "echo" / f"{backend}.py").write_text(code)
    run("build", echo, "--out", tmp_path / "echo")
    models = [json.loads(path.read_text()) for path in (tmp_path / "echo").rglob("1/*.json")]
    arguments = [model[key] if key else model for model in models]
    assert [expected] == [{name: each.get(name) for name in expected} for each in arguments]


def test_method_is_planned_for_engines_by_one_file_of_its_folder(echo: Path, copy: Path, run: Run) -> None:
    text = echo.read_text().replace("engine:\n", "engine:\n  backend: tensorrt_llm\n  gpu: h100\n")
    echo.write_text(text)
    run("check", echo, code=1)
    (copy / "methods" / "echo" / "tensorrt_llm.py").write_text(ENGINES)
    assert "draft_tokens_external" in run("plan", echo, "--json").stdout


def test_backend_is_added_by_one_folder(copy: Path, run: Run, tmp_path: Path) -> None:
    (copy / "backends" / "toy").mkdir()
    (copy / "backends" / "toy" / "__init__.py").write_text(code_of("A backend"))
    recipe = make_pair(tmp_path)
    recipe.write_text(recipe.read_text().replace("engine:\n", "engine:\n  backend: toy\n"))
    run("build", recipe, "--out", tmp_path / "toy")
    assert json.loads((tmp_path / "toy" / "manifest.json").read_text())["backend"]["name"] == "toy"


def test_deploy_target_is_added_by_one_file(copy: Path, run: Run, tmp_path: Path) -> None:
    """Its state, ports, log and options are handled like those of trtspec's own targets."""
    (copy / "deployment" / "targets" / "toy.py").write_text(TARGET)
    run("build", make_pair(tmp_path), "--out", tmp_path / "tiny")
    skipped = ("--skip-gate", "lossless", "--skip-gate", "min_speedup", "--skip-gate", "min_acceptance")
    words = (tmp_path / "tiny", "--target", "toy", "--openai-host", "127.0.0.1", "--detach", "--json", *skipped)
    first = document(run("deploy", *words, "--name", "first"))
    try:
        assert (first["state"], document(run("status", "first", "--json"))["state"]) == ("live", "live")
        second = document(run("deploy", *words, "--name", "second"))
        assert first["endpoints"]["http"] != second["endpoints"]["http"], "ports of a live deployment are reserved"
    finally:
        stopped = [document(run("stop", each, "--json")) for each in ("first", "second")]
    assert all(each["was_running"] for each in stopped)
    assert run("logs", "first", "--follow").stdout == "toy serves\n"
