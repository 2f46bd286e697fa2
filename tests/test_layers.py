# SPDX-License-Identifier: Apache-2.0
"""Imports point one way: each package may import only what stands below it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import trtspec

PACKAGE = Path(trtspec.__file__).parent

LEVELS = [
    {"errors", "__init__", "_data"},
    {"paths", "system", "registry", "files", "failpoint", "interpreter"},
    {"recipe", "graph", "artifacts"},
    {"checkpoint", "kernels"},
    {"families"},
    {"methods"},
    {"quant", "engines", "triton"},
    {"steps"},
    {"check", "inspection", "doctor", "migration"},
    {"layouts"},
    {"pipeline", "deploy", "measure"},
    {"cli"},
    {"__main__"},
]
LEVEL_OF = {name: level for level, names in enumerate(LEVELS) for name in names}


def modules() -> list[Path]:
    return sorted(path for path in PACKAGE.rglob("*.py") if "_data" not in path.parts)


def room_of(path: Path) -> str:
    first = path.relative_to(PACKAGE).parts[0]
    return first.removesuffix(".py")


def imported_rooms(path: Path) -> set[str]:
    rooms = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        rooms |= {
            name.split(".")[1] for name in names if name.startswith("trtspec.") and name.split(".")[1] in LEVEL_OF
        }
    return rooms


@pytest.mark.parametrize("path", modules(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    room = room_of(path)
    assert room in LEVEL_OF, f"{room} has no place in LEVELS"
    for other in imported_rooms(path) - {room}:
        assert LEVEL_OF[other] < LEVEL_OF[room], f"{room} may not import {other}"


def test_the_check_sees_an_upward_import(tmp_path: Path) -> None:
    module = tmp_path / "m.py"
    module.write_text("from trtspec.cli.app import main\n")
    assert imported_rooms(module) == {"cli"}
