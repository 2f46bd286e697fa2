# SPDX-License-Identifier: Apache-2.0
"""Forked children end, write output and can be killed like separate interpreters."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests._support import forked
from trtspec import __version__

pytestmark = pytest.mark.slow  # imports the modules of children


@pytest.mark.parametrize(
    ("code", "ends", "says"),
    [
        ("pass", 0, ""),
        ("import sys; sys.exit(3)", 3, ""),
        ("import sys; sys.exit('no')", 1, "no\n"),
        ("raise ValueError('odd')", 1, "ValueError: odd\n"),
        ("import os; os.kill(os.getpid(), 9)", -9, ""),
        ("import os; os._exit(7)", 7, ""),
    ],
)
def test_child_exits_like_a_separate_interpreter(code: str, ends: int, says: str) -> None:
    argv = [sys.executable, "-c", code]
    ours = forked.run(argv, timeout=60)
    theirs = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    assert (ours.returncode, ours.stdout) == (theirs.returncode, theirs.stdout) == (ends, "")
    assert ours.stderr.splitlines()[-1:] == theirs.stderr.splitlines()[-1:] == says.splitlines()


def test_child_receives_working_directory_environment_and_arguments(tmp_path: Path) -> None:
    code = "import os, sys; print(os.getcwd(), dict(os.environ), sys.argv, 'huggingface_hub' in sys.modules)"
    done = forked.run([sys.executable, "-c", code, "a", tmp_path], timeout=60, cwd=tmp_path, env={"ONE": "1"})
    assert done.stdout == f"{tmp_path} {{'ONE': '1'}} {['-c', 'a', str(tmp_path)]} False\n"


def test_child_can_be_waited_for_and_killed() -> None:
    argv = [sys.executable, "-c", "import time; print('here', flush=True); time.sleep(60)"]
    with forked.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        assert process.poll() is None
        process.kill()
        assert process.wait(60) == -signal.SIGKILL


def test_child_is_killed_with_its_launcher_program(tmp_path: Path) -> None:
    code = "import time; print('here', flush=True); time.sleep(600)"
    forked.make_program(tmp_path / "program", ("-c", code))
    with subprocess.Popen([tmp_path / "program"], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        process.kill()
        begun = time.monotonic()
        assert process.stdout.read() == "", "the pipe is open as long as the child has it"
        assert time.monotonic() - begun < 120


def test_child_exits_with_120_when_its_output_cannot_be_flushed() -> None:
    with Path("/dev/full").open("w") as full, forked.Popen([sys.executable, "-c", "print(1)"], stdout=full) as process:
        assert process.wait(60) == 120


def test_launcher_program_runs_trtspec_from_a_shell(tmp_path: Path) -> None:
    forked.make_program(tmp_path / "trtspec")
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    shell = ["bash", "-c", "trtspec --version | cat; trtspec check nosuch >/dev/null"]
    done = subprocess.run(shell, env=environment, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (1, f"trtspec {__version__}\n")


def test_launcher_program_replaces_another_interpreter(tmp_path: Path) -> None:
    """Another interpreter, given by its path, imports the requested modules."""
    (tmp_path / "python").symlink_to(sys.executable)
    forked.make_program(tmp_path / "fork", (), ("colorsys",), str(tmp_path / "python"))
    (tmp_path / "script.py").write_text(
        "import sys; print(input(), sys.argv, __name__, 'colorsys' in sys.modules, 'typer' in sys.modules)"
    )
    command = [tmp_path / "fork", tmp_path / "script.py", "a"]
    done = subprocess.run(command, input="asked", capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == f"asked {[str(tmp_path / 'script.py'), 'a']} __main__ True False\n"
