# SPDX-License-Identifier: Apache-2.0
"""All available compilers and processors give the same results, bit for bit."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.plugins.driving import compile_driver, run_compiler
from trtspec.core.paths import plugins_dir
from trtspec.kernels.build import AVX512_FLAGS, X86_FLAGS

CPU_INFO = Path("/proc/cpuinfo")


def tool(name: str) -> str:
    """Return a program's path; skip the test if it is not installed."""
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"no {name} on the PATH")
    return found


def needs(flag: str) -> None:
    """Skip the test on a processor that lacks a feature."""
    if flag not in CPU_INFO.read_text().split():
        pytest.skip(f"this processor lacks {flag}")


def driver_output(driver: Path, *runner: str) -> str:
    return subprocess.run([*runner, driver], capture_output=True, text=True, check=True, timeout=300).stdout


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return the driver's results without processor-specific instructions."""
    return driver_output(compile_driver(tool("g++"), tmp_path_factory.mktemp("plain")))


def test_avx2_build_equals_the_portable_build(tmp_path: Path, expected: str) -> None:
    needs("avx2")
    assert driver_output(compile_driver(tool("g++"), tmp_path, *X86_FLAGS)) == expected


def test_avx512_build_equals_the_portable_build(tmp_path: Path, expected: str) -> None:
    needs("avx512vl")
    objects = []
    for kernel in ("quantize", "verify_block", "verify_chain", "verify_tree"):
        objects.append(f"{kernel}.o")
        source = plugins_dir() / kernel / "avx512.cpp"
        run_compiler(tool("g++"), tmp_path, *AVX512_FLAGS, "-c", source, "-o", objects[-1])
    assert driver_output(compile_driver(tool("g++"), tmp_path, *X86_FLAGS, more=objects)) == expected


@pytest.mark.parametrize("flags", [(), X86_FLAGS], ids=["any processor", "AVX2"])
def test_clang_build_equals_the_portable_build(tmp_path: Path, expected: str, flags: Sequence[str]) -> None:
    needs("avx2")
    assert driver_output(compile_driver(tool("clang++"), tmp_path, *flags)) == expected


def test_arm_build_equals_the_portable_build(tmp_path: Path, expected: str) -> None:
    """In an emulator: requires only a cross compiler and its libraries."""
    emulator, compiler = tool("qemu-aarch64"), tool("aarch64-linux-gnu-g++")
    assert driver_output(compile_driver(compiler, tmp_path, "-static"), emulator) == expected
