# SPDX-License-Identifier: Apache-2.0
"""Real engines, each in an environment of its own beside the project's: `make vllm` fills .venv-vllm.

NAME.txt beside this file is the whole list of what such an environment holds; nothing else is installed there.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from tests._support import forked

ROOT = Path(__file__).parents[2]


def engine_python(name: str) -> Path:
    """Return the interpreter of an engine's environment; skips the test where it was not made."""
    python = Path(os.environ.get("ENGINES", ROOT)) / f".venv-{name}" / "bin" / "python"
    if not python.is_file():
        pytest.skip(f"no {name} here: make {name}")
    return python


def make_forking(root: Path, name: str, *imported: str, programs: Iterable[str] = ()) -> Path:
    """Make an engine's environment at `root`, of whose programs only some are there.

    They and its interpreter begin in forks of one that has imported modules.
    """
    python = engine_python(name)
    (root / "bin").mkdir(parents=True)
    (root / "lib").symlink_to(python.parents[1] / "lib")
    forked.make_program(root / "bin" / "python", (), imported, str(python))
    for program in programs:
        forked.make_program(root / "bin" / program, (str(python.with_name(program)),), imported, str(python))
    return root
