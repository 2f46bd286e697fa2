# SPDX-License-Identifier: Apache-2.0
"""Commands as steps: the JSON document of a command that ran on a worker, and its errors."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fleet.scripted import ScriptedPool
from trtspec.backends.code_policy import ALLOW
from trtspec.bench.gates import POLICY
from trtspec.cli.app import make_command
from trtspec.cli.measuring import options_for_nodes
from trtspec.core.errors import StepError
from trtspec.core.processes import wait_until
from trtspec.fleet.command import DOCUMENT, RECIPE, RunCommands, read_document, read_exit_code
from trtspec.fleet.labels import Node
from trtspec.fleet.scheduler import Cell, Scheduler
from trtspec.store.store import Store

ONE = "extends: quickstart\nname: one\n"


def run(step: RunCommands, folder: Path) -> Scheduler:
    scheduler = Scheduler([Cell("one", (step,), {}, "r.yaml:2")], ScriptedPool([Node("n")], folder))
    scheduler.run()
    return scheduler


def check(text: str, *arguments: str, run_id: str = "1") -> RunCommands:
    return RunCommands(text, (("check", RECIPE, *arguments),), run_id)


def test_document_of_the_last_command_comes_back(tmp_path: Path) -> None:
    step = RunCommands(ONE, (("schema",), ("check", RECIPE, "--set", "speculation.draft_len=3")), "1")
    scheduler = run(step, tmp_path)
    assert scheduler.cells[0].status == "built", scheduler.cells[0].failure
    entry = Store(tmp_path).get(step.key).entry
    assert entry
    document = read_document(entry.files_dir)
    assert [each["name"] for each in document["recipes"]] == ["one"]
    assert read_exit_code(entry.files_dir) == 0
    assert check(ONE, run_id="1").key != check(ONE, run_id="2").key


def test_error_of_a_command_is_reported(tmp_path: Path) -> None:
    (cell,) = run(check(ONE + "nonsense: 1\n"), tmp_path).cells
    assert cell.failure
    assert "nonsense" in cell.failure.message
    assert (cell.failure.hint, cell.failure.where) == ("exit code 1", "trtspec check")
    assert cell.failure.exit_code != 70  # not a bug


def test_error_of_an_earlier_command_ends_the_step(tmp_path: Path) -> None:
    (cell,) = run(RunCommands(ONE, (("check", "absent.yaml"), ("check", RECIPE)), "1"), tmp_path).cells
    assert cell.failure
    assert "absent.yaml" in cell.failure.message


def test_negative_results_come_back_with_their_exit_code(tmp_path: Path) -> None:
    """`plan --detailed-exitcode` exits with 2 and prints its document, as `bench --gates` does with 112."""
    step = RunCommands(ONE, (("plan", RECIPE, "--detailed-exitcode", "--set", "engine.max_seq_len=777"),), "1")
    assert run(step, tmp_path).cells[0].status == "built"
    entry = Store(tmp_path).get(step.key).entry
    assert entry
    assert read_exit_code(entry.files_dir) == 2
    assert "recipes" in read_document(entry.files_dir)


@pytest.mark.parametrize("text", ["", "[]", "{"])
def test_output_that_is_no_document_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / DOCUMENT).write_text(text)
    with pytest.raises(StepError, match="the command printed no JSON document"):
        read_document(tmp_path)


def test_options_are_passed_on_without_recipes_pool_and_json(tmp_path: Path) -> None:
    prompts = tmp_path / "p.jsonl"
    prompts.write_text(json.dumps({"prompt": "a"}))
    command = make_command("profile")
    arguments = ["a.yaml", "b.yaml", "--on", "ray", "--json", "--num-prompts", "8", "--prompts", str(prompts)]
    with command.make_context("trtspec", ["profile", *arguments]) as root:
        name, found, rest = command.resolve_command(root, ["profile", *arguments])
        with found.make_context(name, rest, parent=root) as context:
            passed = options_for_nodes(context)
    assert sorted(zip(passed[::2], passed[1::2], strict=True)) == [
        ("--num-prompts", "8"),
        ("--prompts", str(prompts)),
    ]


def test_options_that_set_variables_are_passed_on_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(POLICY, "pass")
    monkeypatch.setenv(ALLOW, "")
    command, digest = make_command("bench"), "0" * 64
    arguments = ["a.yaml", "--on", "ray", "--gates", "--undecided", "fail", "--allow-code", digest]
    with command.make_context("trtspec", ["bench", *arguments]) as root:
        name, found, rest = command.resolve_command(root, ["bench", *arguments])
        with found.make_context(name, rest, parent=root) as context:
            assert options_for_nodes(context) == ["--gates", "--allow-code", digest, "--undecided", "fail"]


DRIVER = """
import sys
from pathlib import Path
from trtspec.fleet.command import RunCommands
from trtspec.store.step import Inputs, StepProgress
sys.executable = sys.argv[1]
RunCommands("", (("bench",),), "1").run(Path(sys.argv[2]), Inputs({}), StepProgress())
"""


def test_command_ends_with_its_worker(tmp_path: Path) -> None:
    program, pid = tmp_path / "program", tmp_path / "pid"
    program.write_text(f"#!/bin/sh\necho $$ > {pid}.new && mv {pid}.new {pid}\nexec sleep 60\n")
    program.chmod(0o755)
    worker = subprocess.Popen([sys.executable, "-c", DRIVER, str(program), str(tmp_path)])
    try:
        assert wait_until(pid.exists, 30)
    finally:
        worker.kill()
        worker.wait(10)
    child = Path("/proc", pid.read_text().strip())
    assert wait_until(lambda: not child.exists(), 10)
