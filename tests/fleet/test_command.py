# SPDX-License-Identifier: Apache-2.0
"""Commands as steps: the JSON document of a command that ran on a worker, and its errors."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.fleet.scripted import ScriptedPool
from trtspec.cli.app import make_command
from trtspec.cli.measuring import options_for_nodes
from trtspec.core.errors import StepError
from trtspec.fleet.command import DOCUMENT, RunCommand, read_document
from trtspec.fleet.labels import Node
from trtspec.fleet.scheduler import Cell, Scheduler
from trtspec.store.store import Store

RECIPE = "extends: quickstart\nname: one\n"


def run(step: RunCommand, folder: Path) -> Scheduler:
    scheduler = Scheduler([Cell("one", (step,), {}, "r.yaml:2")], ScriptedPool([Node("n")], folder))
    scheduler.run()
    return scheduler


def test_document_of_a_command_comes_back(tmp_path: Path) -> None:
    step = RunCommand("check", RECIPE, ("--set", "speculation.draft_len=3"), "1")
    scheduler = run(step, tmp_path)
    assert scheduler.cells[0].status == "built", scheduler.cells[0].failure
    entry = Store(tmp_path).get(step.key).entry
    assert entry
    document = read_document(entry.files_dir)
    assert [each["name"] for each in document["recipes"]] == ["one"]
    assert RunCommand("check", RECIPE, step.arguments, "2").key != step.key


def test_error_of_a_command_is_reported(tmp_path: Path) -> None:
    (cell,) = run(RunCommand("check", RECIPE + "nonsense: 1\n", (), "1"), tmp_path).cells
    assert cell.failure
    assert "nonsense" in cell.failure.message
    assert (cell.failure.hint, cell.failure.is_bug) == ("exit code 1", False)


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
