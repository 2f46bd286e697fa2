# SPDX-License-Identifier: Apache-2.0
"""Messages of `make setup` about the Python interpreter."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from trtspec.core import interpreter

pytestmark = pytest.mark.every_python

LATER = (3, 99, 0)


def test_current_interpreter_has_no_problems() -> None:
    command = [sys.executable, "-I", interpreter.__file__]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    assert (done.stdout, done.stderr) == ("", "")
    assert interpreter.libpython().name == interpreter.libpython_name()


@pytest.mark.parametrize("version", [(3, 9, 18), LATER])
def test_unsupported_python_version_is_reported(version: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "version_info", version)
    [(fault, remedy)] = interpreter.interpreter_problems()
    assert "3.10 to 3.1" in fault
    assert remedy == "use another Python: make setup PYTHON=python3.12"


def test_all_missing_parts_are_reported_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter, "libpython", lambda: None)
    monkeypatch.setattr(interpreter.importlib.util, "find_spec", lambda name: None)
    assert [fault.partition(":")[0] for fault, _ in interpreter.interpreter_problems()] == [
        "no ensurepip, which virtual environments require",
        f"no {interpreter.libpython_name()}",
    ]


def test_make_setup_rejects_an_unsupported_python_before_installing(tmp_path: Path) -> None:
    """`make setup` with an unsupported Python prints the reason and creates no environment."""
    python = tmp_path / "python"
    code = "import sys; sys.version_info = (3, 99, 0, 'final', 0); sys.argv = sys.argv[1:]"
    script = f"{code}; import runpy; runpy.run_path(sys.argv[0], run_name='__main__')"
    python.write_text(f'#!/bin/sh\nshift\nexec {sys.executable} -I -c "{script}" "$@"\n')
    python.chmod(0o755)
    command = ["make", "setup", f"PYTHON={python}", f"VENV={tmp_path / 'venv'}"]
    root = Path(interpreter.__file__).parents[2]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert "are supported on this machine\n  use another Python: make setup PYTHON=python3.12\n" in done.stderr
    assert not (tmp_path / "venv").exists()
