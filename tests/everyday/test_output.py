# SPDX-License-Identifier: Apache-2.0
"""Full or closed stdout and closed pipes never cause a traceback."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests._support import forked

pytestmark = pytest.mark.slow  # many commands from start to end

FULL = "error: standard output: No space left on device\n"
CLOSED = "error: standard output: Bad file descriptor\n"
COMMANDS = {
    "help": "--help",
    "help of a command": "check --help",
    "version": "--version",
    "more than a buffer holds": "schema",
    "check": "check recipe.yaml --json",
    "plan": "plan recipe.yaml --json",
    "build": "build recipe.yaml --json",
    "cache": "cache --json",
    "verify": "verify build/tiny --max-tokens 2 --json",
    "inspect": "inspect build/tiny --json",
    "plugins": "plugins list --json",
    "migrate": "migrate recipe.yaml --to 1.2.1 --json",
    "search-skips": "search-skips recipe.yaml --num-prompts 2 --max-tokens 2 --iterations 1 --json",
    "status": "status nosuch --json",
    "stop": "stop nosuch --json",
    "deploy": "deploy nosuch --json",
    "bench": "bench build/tiny --runs 1 --max-tokens 2 --json",
    "recipes": "recipes --json",
    "doctor": "doctor --json",
    "generate": "generate build/tiny -p the --max-tokens 4",
    "an error": "inspect nosuch --json",
    "wrong usage is not about the output": "chek",
}
# Commands that compute, with slow imports.
COMPUTE = ("verify", "search-skips", "bench", "generate", "doctor")
# Commands that also run in a new interpreter, to test its start and exit.
WHOLE = ("help", "check", "an error")
AS_CLOSED = "import os, sys; os.close(1); sys.stdout = None; from trtspec.cli.app import main; main(sys.argv[1:])"


def run(arguments: str, redirection: str) -> subprocess.CompletedProcess[str]:
    command = f'exec "$0" -m trtspec {arguments} {redirection}'
    shell = ["bash", "-c", command, sys.executable]
    return subprocess.run(shell, check=False, capture_output=True, text=True, timeout=60)


def run_in_fork(name: str, redirection: str) -> subprocess.CompletedProcess[str]:
    """Run a command like `run`, in a fork; a closed stdout becomes None, as in a new interpreter."""
    kind = forked.Computing if name in COMPUTE else forked.Popen
    arguments = COMMANDS[name].split()
    if redirection == ">&-":
        return forked.run([sys.executable, "-c", AS_CLOSED, *arguments], 60, kind=kind)
    with Path("/dev/full").open("w") as full:
        return forked.run([sys.executable, "-m", "trtspec", *arguments], 60, stdout=full, kind=kind)


@pytest.mark.parametrize("name", COMMANDS)
def test_full_or_closed_stdout_ends_a_command_with_a_message(name: str, artifact: Path) -> None:
    for redirection, line in ((">/dev/full", FULL), (">&-", CLOSED)):
        ended = run(COMMANDS[name], redirection) if name in WHOLE else run_in_fork(name, redirection)
        assert ended.returncode == 1, ended.stderr
        assert "Traceback" not in ended.stderr
        if name != "wrong usage is not about the output":
            assert ended.stderr.endswith(line)
        assert not ended.stdout


@pytest.mark.parametrize("name", ["help", "more than a buffer holds", "plan", "generate", "an error"])
def test_closed_pipe_gets_no_error_message(name: str, artifact: Path) -> None:
    argv = [sys.executable, "-m", "trtspec", *COMMANDS[name].split()]
    begin = forked.Computing if name in COMPUTE else subprocess.Popen
    with begin(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        said = process.stderr.read()
        assert process.wait(60) == 1
    assert "output" not in said
    assert "Traceback" not in said


def test_unused_output_stream_may_be_full_or_closed(recipe: Path) -> None:
    for redirection in ("2>/dev/full", "2>&-", "<&- 2>&-"):
        assert run("check recipe.yaml", redirection).returncode == 0
    for redirection in (">/dev/full", ">&-"):
        ended = run("status nosuch", redirection)
        assert (ended.returncode, ended.stderr.splitlines()[0]) == (1, "error: no deployment 'nosuch'; known: none")
        assert "output" not in ended.stderr


def test_full_stderr_ends_a_command(recipe: Path) -> None:
    ended = run("build recipe.yaml", "2>/dev/full")
    assert (ended.returncode, ended.stdout, ended.stderr) == (1, "", "")


def test_descriptor_of_a_closed_output_is_not_reused_for_files(recipe: Path) -> None:
    assert run("build recipe.yaml", ">&- 2>&-").returncode == 1  # nobody reads the last line
    assert run("cache --verify", "").returncode == 0
