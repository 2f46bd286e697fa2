# SPDX-License-Identifier: Apache-2.0
"""The CPU code under the address and undefined-behaviour sanitizers."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.plugins.driving import compile_driver

SANITIZERS = ("-O1", "-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def test_driver_runs_without_sanitizer_errors(tmp_path: Path) -> None:
    compiler = shutil.which("g++")
    if compiler is None:
        pytest.skip("no g++ on the PATH")
    driver = compile_driver(compiler, tmp_path, *SANITIZERS)
    # OpenMP's threads, and their memory, exist until the process ends
    environment = os.environ | {"ASAN_OPTIONS": "detect_leaks=0"}
    ran = subprocess.run([driver], capture_output=True, text=True, check=False, env=environment, timeout=300)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert re.fullmatch("clean [0-9a-f]{16}\n", ran.stdout)
