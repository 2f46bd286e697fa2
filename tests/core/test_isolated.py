# SPDX-License-Identifier: Apache-2.0
"""Isolated interpreters find the packages of this process, and nothing by the current directory."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from trtspec.core.errors import TrtspecError
from trtspec.core.isolated import isolated_python
from trtspec.core.sandbox import SandboxLimits, run_in_child


def said_by(module: str, cwd: Path, *arguments: str) -> str:
    command = isolated_python(module, *arguments)
    done = subprocess.run(command, cwd=cwd, env={}, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout + done.stderr


def test_modules_are_found_by_python_path_but_not_in_the_current_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, folder in (("given", tmp_path / "packages"), ("here", tmp_path)):
        folder.mkdir(exist_ok=True)
        (folder / f"{name}.py").write_text("import sys; print(sys.argv[1:], __name__)")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "packages"), "", "."]))
    assert said_by("given", tmp_path, "a", "b c") == "['a', 'b c'] __main__\n"
    assert "No module named here" in said_by("here", tmp_path)


def test_child_that_cannot_start_is_not_blamed_on_its_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trtspec.core.sandbox.isolated_python", lambda *_: isolated_python("no_such_module"))
    with pytest.raises(TrtspecError, match=r"ended with status 1 before its first answer") as caught:
        run_in_child("json:loads", None, limits=SandboxLimits())
    assert type(caught.value) is TrtspecError
    assert "imports trtspec" in str(caught.value.hint)
