# SPDX-License-Identifier: Apache-2.0
"""Nothing waits for ever: each call that can wait for another process, thread or server says for how long."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import trtspec

ROOT = Path(trtspec.__file__).parents[1]
FOLDERS = ("trtspec", "model_repository", "tests", "benchmarks")
# a call of one of these without an argument waits until what it waits for happens
BARE = {"wait", "join", "communicate"}
TIMED = {"run", "check_output", "check_call", "urlopen", "HTTPConnection", "create_connection"}

ALLOWED = "# unbounded: "  # and the reason, on the line of the call


def endless(source: str) -> list[int]:
    """Return the lines of the calls that may wait for ever and do not say why."""
    lines = source.splitlines()
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call) and waits(node)]
    return [call.lineno for call in calls if ALLOWED not in lines[call.lineno - 1]]


def waits(call: ast.Call) -> bool:
    name = call.func.attr if isinstance(call.func, ast.Attribute) else getattr(call.func, "id", "")
    of_module = isinstance(call.func, ast.Attribute) and isinstance(call.func.value, ast.Name)
    if name in TIMED and (name != "run" or (of_module and call.func.value.id == "subprocess")):
        return not any(keyword.arg == "timeout" for keyword in call.keywords)
    return name in BARE and isinstance(call.func, ast.Attribute) and not call.args and not call.keywords


def test_wait_check_detects_unbounded_waits() -> None:
    source = "t.join()\nt.join(3)\nsubprocess.run([])\nsubprocess.run([], timeout=3)\nt.wait()  # unbounded: why\n"
    assert endless(source) == [1, 3]


@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS)
def test_code_has_no_unbounded_waits(folder: str) -> None:
    files = sorted((ROOT / folder).rglob("*.py"))
    assert files
    assert [f"{path}:{line}" for path in files for line in endless(path.read_text())] == []
