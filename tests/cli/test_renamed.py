# SPDX-License-Identifier: Apache-2.0
"""Former names of commands and options work and are reported; `--help` lists commands in panels."""

from __future__ import annotations

import re
from pathlib import Path

from tests.conftest import Run
from trtspec.cli.app import OTHER, PANELS, make_command
from trtspec.cli.renamed import _COMMANDS, _OPTIONS, current_arguments


def test_former_option_is_replaced_with_a_note() -> None:
    given = ["-v", "bench", "x", "--min-ratio", "1", "--samples=a.jsonl"]
    found, notes = current_arguments(given)
    assert found == ["-v", "bench", "x", "--fail-below", "1", "--samples-out=a.jsonl"]
    assert notes == [
        "bench --min-ratio is now --fail-below; --min-ratio will be removed in the next release",
        "bench --samples is now --samples-out; --samples will be removed in the next release",
    ]


def test_former_command_is_replaced_with_its_options() -> None:
    found, notes = current_arguments(["swift", "x", "--minutes", "1"])
    assert found == ["search-skips", "x", "--max-minutes", "1"]
    assert notes == [
        "swift is now search-skips; swift will be removed in the next release",
        "search-skips --minutes is now --max-minutes; --minutes will be removed in the next release",
    ]
    assert current_arguments(["prune", "x", "--vocab=64"])[0] == ["prune-vocab", "x", "--vocab=64"]
    assert current_arguments(["prune", "x", "--layers", "2"])[0] == ["prune-layers", "x", "--layers", "2"]


def test_option_of_another_command_is_unchanged() -> None:
    for given in (["generate", "x", "--samples", "1"], ["bench", "--", "--samples"], [], ["--help"]):
        assert current_arguments(given) == (given, [])


def test_current_names_exist_and_former_names_do_not() -> None:
    commands = make_command().commands
    for command, renamed in _OPTIONS.items():
        options = {name for each in commands[command].params for name in each.opts}
        assert {*renamed.values()} <= options, command
        assert not options & renamed.keys(), command
    assert {*_COMMANDS.values()} <= commands.keys()
    assert not commands.keys() & _COMMANDS.keys()


def test_former_option_works_with_a_note(trtspec: Run, tmp_path: Path) -> None:
    done = trtspec("check", "quickstart", "--cell", "quickstart")
    assert done.code == 0
    assert done.err.startswith("note: check --cell is now --variant; ")


def test_help_lists_every_command_in_a_panel_with_everyday_commands_first(trtspec: Run) -> None:
    shown = trtspec("--help").out
    assert [line[:-1] for line in shown.splitlines() if re.fullmatch(r"[A-Z]\w+:", line)] == ["Options", *PANELS]
    assert OTHER not in shown
    build = shown.split("Build:\n")[1].split("\n\n")[0].splitlines()
    assert [line.split()[0] for line in build[:4]] == ["check", "plan", "build", "verify"]
    assert {*make_command().commands} == {*re.findall(r"^  ([a-z-]+)  +\S", shown.split("Build:\n")[1], re.MULTILINE)}
