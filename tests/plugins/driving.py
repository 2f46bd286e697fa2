# SPDX-License-Identifier: Apache-2.0
"""driver.cpp compiled as a program by different compilers for different processors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests._support.compiled import compile_once
from trtspec.core.paths import plugins_dir
from trtspec.kernels.build import COMMON_SOURCES, CXX_FLAGS, WITHOUT_CUDA, discover_plugins

DRIVER = Path(__file__).with_name("driver.cpp")


def compile_driver(compiler: str, folder: Path, *flags: str, more: Sequence[str] = ()) -> Path:
    """Return the program, compiled from the sources for every processor, and `more` objects."""
    plugins = discover_plugins().values()
    sources = [*COMMON_SOURCES, *WITHOUT_CUDA, *(path for plugin in plugins for path in plugin.paths((), ""))]
    run_compiler(
        compiler, folder, *flags, DRIVER, *(plugins_dir() / source for source in sources), *more, "-o", "driver"
    )
    return folder / "driver"


def run_compiler(compiler: str, folder: Path, *arguments: str | Path) -> None:
    """Run a compiler with the flags of every library."""
    includes = [f"-I{plugins_dir() / place}" for place in (".", "include")]
    command = [compiler, *CXX_FLAGS, "-Werror", *includes, *arguments]
    compile_once(command, folder)
