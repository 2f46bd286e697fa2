# SPDX-License-Identifier: Apache-2.0
"""Compile the code of the GPU's threads for an emulated machine, to test it without a GPU."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests._support.compiled import compile_once

HERE = Path(__file__).parent
PLUGINS = HERE.parents[1] / "plugins"
# a fiber switches stacks, which fortified sources report as an error
FLAGS = (
    "-std=c++17",
    "-O2",
    "-Wall",
    "-Wextra",
    "-Werror",
    "-ffp-contract=off",
    "-U_FORTIFY_SOURCE",
    "-shared",
    "-fPIC",
)


def compile_emulated(out: Path, *sources: Path, first_includes: Sequence[Path] = ()) -> Path:
    """Return the library of some sources, compiled with extra headers first; skip without a compiler."""
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++ on the PATH")
    library = out / f"{sources[0].stem}.so"
    include = [f"-I{folder}" for folder in (*first_includes, PLUGINS, PLUGINS / "include", HERE)]
    command = [compiler, *FLAGS, *include, *map(str, sources), "-o", str(library)]
    compile_once(command, out)
    return library
