# SPDX-License-Identifier: Apache-2.0
"""The CPU's part under the address and undefined-behaviour sanitizers: no byte beside its arrays, nothing undefined."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from trtspec.kernels.build import COMMON_SOURCES, WITHOUT_CUDA, discover_plugins
from trtspec.kernels.toolchain import CXX_FLAGS
from trtspec.paths import plugins_dir

DRIVER = Path(__file__).with_name("driver.cpp")
SANITIZERS = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def test_the_driver_is_clean(tmp_path: Path) -> None:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++ on the PATH")
    plugins, machine = discover_plugins().values(), ""  # whose sources are compiled without its own flags
    sources = [*COMMON_SOURCES, *WITHOUT_CUDA, *(path for plugin in plugins for path in plugin.paths((), machine))]
    includes = [f"-I{plugins_dir() / folder}" for folder in (".", "include")]
    command = [compiler, *CXX_FLAGS, *SANITIZERS, *includes, DRIVER, *(plugins_dir() / source for source in sources)]
    made = subprocess.run([*command, "-o", "driver"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    # OpenMP's threads are there to the end of the process, with what they hold
    environment = os.environ | {"ASAN_OPTIONS": "detect_leaks=0"}
    ran = subprocess.run([tmp_path / "driver"], capture_output=True, text=True, check=False, env=environment)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "clean\n", "")
