# SPDX-License-Identifier: Apache-2.0
"""Results go to stdout and notes to stderr; tables have one line per row in a pipe and fit a terminal."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import Run
from trtspec.cli.generate import write
from trtspec.cli.render import show_table

ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
LONG = ("a" * 200, "7")


@pytest.mark.slow
def test_results_are_on_stdout_and_notes_on_stderr(recipe: Path, trtspec: Run) -> None:
    planned = trtspec("plan", recipe, "--set", "engine.backend=llmapi", "--set", "engine.extra.gemm_plugin=auto")
    assert planned.out.startswith("tiny: llmapi engine")
    assert "warning: an option of trtllm-build" in planned.err
    built = trtspec("build", recipe)
    assert re.fullmatch(r"build/tiny: built \(.* s\)\nmanifest sha256:[0-9a-f]{64}\n", built.out)
    assert "convert-target" in built.err
    checked = trtspec("check", recipe)
    assert (checked.out, checked.err) == ("end ids: 0 (generation_config.json)\ntiny: valid\n", "")
    for arguments, said in ((("inspect", "build/tiny"), "kind"), (("recipes",), "quickstart"), (("cache",), "entries")):
        shown = trtspec(*arguments)
        assert said in shown.out
        assert shown.err == ""


def test_failed_command_leaves_stdout_empty(recipe: Path, trtspec: Run) -> None:
    failed = trtspec("plan", recipe, "--set", "speculation.draft_len=99")
    assert (failed.code, failed.out) == (1, "")
    assert "draft_len must be at most 64" in failed.err


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [("check",), ("plan",), ("build",), ("recipes",), ("cache",), ("doctor",)])
def test_json_output_replaces_the_text_output(arguments: tuple[str, ...], recipe: Path, trtspec: Run) -> None:
    if arguments[0] in ("check", "plan", "build"):
        arguments = (*arguments, str(recipe))
    shown = set(trtspec(*arguments).out.splitlines())
    asked = trtspec(*arguments, "--json")
    assert asked.document
    assert shown
    assert not shown & set(asked.err.splitlines())


def test_table_row_in_a_pipe_is_one_line(
    capfd: pytest.CaptureFixture[str], trtspec: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for columns, force in (("40", ""), ("300", ""), ("80", "1")):  # neither changes the layout in a pipe
        monkeypatch.setenv("COLUMNS", columns)
        monkeypatch.setenv("FORCE_COLOR", force)
        show_table("title", ("name", "n"), [LONG, ("b", "12"), ("c\nd", "")], (1,))
        lines = ESCAPES.sub("", capfd.readouterr().out).splitlines()
        width = len(LONG[0])
        expected = ["name".ljust(width) + "   n", LONG[0] + "   7", "b".ljust(width) + "  12", "c; d"]
        assert lines == ["title", *expected]


def test_table_without_column_names_has_no_empty_line(capfd: pytest.CaptureFixture[str]) -> None:
    show_table("", ("", ""), [("kind", "source"), ("size", "3")])
    assert capfd.readouterr().out == "kind  source\nsize  3\n"


def terminal_output(columns: int, *arguments: object, **environment: str) -> str:
    """Return the stdout of a command on a terminal of this width."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    plain = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")}
    subprocess.run(
        [sys.executable, "-m", "trtspec", *map(str, arguments)],
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.DEVNULL,
        env={**plain, "TERM": "xterm-256color", **environment},
        timeout=30,
        check=True,
    )
    os.close(theirs)
    return b"".join(_read_all(ours)).decode()


def _read_all(descriptor: int) -> Iterator[bytes]:
    while True:
        try:
            chunk = os.read(descriptor, 65536)
        except OSError:  # raised by Linux if the other end is closed
            return
        yield chunk


@pytest.mark.slow
def test_table_fits_the_terminal(recipe: Path) -> None:
    for columns, environment in ((80, {}), (120, {}), (80, {"COLUMNS": "60"})):
        width = int(environment.get("COLUMNS", columns))
        table = terminal_output(columns, "inspect", recipe.parent / "target", **environment)
        assert max(len(line) for line in ESCAPES.sub("", table).splitlines()) <= width


@pytest.mark.slow
def test_no_color_disables_colours(recipe: Path) -> None:
    for environment, coloured in (({}, True), ({"NO_COLOR": "1"}, False)):
        wrong = terminal_output(80, "cache", "--verify", **environment)
        assert "all files match their recorded digests" in wrong
        assert ("\x1b[32m" in wrong) == coloured


@pytest.mark.slow
def test_closed_pipe_ends_a_command_silently(workplace: Path) -> None:
    command = [sys.executable, "-m", "trtspec", "recipes"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        said = process.stderr.read()
        assert process.wait(30) == 1
    assert said == ""


@pytest.mark.parametrize("is_terminal", [True, False])
def test_control_characters_of_generated_text_are_escaped_on_a_terminal(
    is_terminal: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "a\x1b[2Jb\x9b3\tc\n\xa0\u200d"
    monkeypatch.setattr(sys.stdout, "isatty", lambda: is_terminal)
    write(text)
    shown = "a\\x1b[2Jb\\x9b3\tc\n\xa0\u200d"
    assert capsys.readouterr().out == (shown if is_terminal else text)
