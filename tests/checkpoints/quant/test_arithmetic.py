# SPDX-License-Identifier: Apache-2.0
"""All implementations of a conversion write the same bytes, and a conversion does not need a compiler."""

from __future__ import annotations

import hashlib
import logging
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests._support.compiled import run_build
from tests._support.tiny import FAMILY_SHAPES, convert, make_model
from trtspec.checkpoints import conversion_tasks
from trtspec.checkpoints.arithmetic import (
    WORTH_BYTES,
    Arithmetic,
    CompilingArithmetic,
    NumpyArithmetic,
    choose_arithmetic,
)
from trtspec.checkpoints.conversion import Activations
from trtspec.checkpoints.quant_scheme import Scheme
from trtspec.checkpoints.sharding import ParallelMapping
from trtspec.core.errors import StepTimeout
from trtspec.kernels import build, host_kernels
from trtspec.kernels.bindings import load_library
from trtspec.kernels.build import HOST_PLUGINS
from trtspec.kernels.host_kernels import CompiledArithmetic, Instructions, fastest_instructions


class Ones(dict[str, float]):
    """A calibration result of 1 for every module."""

    def __contains__(self, name: object) -> bool:
        return True

    def __getitem__(self, name: str) -> float:
        return 1.0


def digests(out: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(out.iterdir())}


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILY_SHAPES)
def test_all_implementations_convert_to_the_same_bytes(
    family: str, tmp_path: Path, build_kernels: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    library = load_library(build_kernels(*HOST_PLUGINS))
    chosen = [CompiledArithmetic(library, Instructions(each)) for each in range(1, fastest_instructions(library) + 1)]
    ones = Activations(Ones(), Ones(), Ones())
    for dtype, target in (("bfloat16", "auto"), ("float32", "bfloat16"), ("bfloat16", "float16")):
        source = make_model(tmp_path / dtype, family, dtype=dtype)
        for scheme in (Scheme(), Scheme("fp8", "fp8"), Scheme("fp8_rowwise")):
            if family == "mixtral" and scheme.weights == "fp8_rowwise":
                continue
            found = []
            for number, each in enumerate([NumpyArithmetic(), *chosen]):
                monkeypatch.setattr(conversion_tasks, "choose_arithmetic", lambda nbytes, each=each: each)
                out = tmp_path / f"{dtype}-{target}-{scheme.weights}-{number}"
                convert(source, out, target, scheme=scheme, activations=ones, mapping=ParallelMapping(2))
                found.append(digests(out))
            assert found[1:] == found[:1] * len(chosen)


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch, workplace: Path) -> list[float]:
    """The time limits of all compilations, each of which times out."""
    bounds: list[float] = []

    def run(command: tuple[str, ...], timeout_s: float) -> None:
        bounds.append(timeout_s)
        raise StepTimeout(f"g++ did not end within {timeout_s:.0f} s")

    monkeypatch.setattr(build, "_run", run)
    return bounds


def ended(arithmetic: Arithmetic) -> Arithmetic:
    """Return what a conversion uses once the compilation in the background has ended."""
    assert isinstance(arithmetic, CompilingArithmetic)
    arithmetic.compiling.join(120)
    return arithmetic._now


def test_small_conversion_uses_numpy_without_compiling(compilations: list[float]) -> None:
    assert isinstance(choose_arithmetic(WORTH_BYTES - 1), NumpyArithmetic)
    assert compilations == []


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ on the PATH")
def test_compiler_timeout_falls_back_to_numpy(compilations: list[float], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, host_kernels.log.name)
    assert isinstance(ended(choose_arithmetic(WORTH_BYTES)), NumpyArithmetic)
    assert set(compilations) == {60}
    assert caplog.messages == ["using numpy, which is slower but equivalent: g++ did not end within 60 s"]


def test_missing_compiler_falls_back_to_numpy(
    workplace: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, host_kernels.log.name)
    monkeypatch.setattr(shutil, "which", lambda name: None)
    assert isinstance(ended(choose_arithmetic(WORTH_BYTES)), NumpyArithmetic)
    assert "no C++ compiler on the PATH" in caplog.messages[0]


def test_unwritable_cache_falls_back_to_numpy(workplace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (workplace / "file").touch()
    monkeypatch.setenv("TRTSPEC_CACHE", str(workplace / "file"))
    assert isinstance(ended(choose_arithmetic(WORTH_BYTES)), NumpyArithmetic)


@pytest.mark.slow
def test_cached_library_is_used_without_a_compiler(
    workplace: Path, build_kernels: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = build_kernels(*HOST_PLUGINS)
    monkeypatch.setenv("TRTSPEC_CACHE", str(path.parents[2]))
    monkeypatch.setattr(shutil, "which", lambda name: None)
    found = choose_arithmetic(1)  # from the first byte
    assert isinstance(found, CompiledArithmetic)
    assert (found.library.path, found.instructions) == (path, fastest_instructions(found.library))


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++ on the PATH")
def test_conversion_compiles_the_library_in_the_background_once(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[Sequence[str]] = []

    def run(command: Sequence[str], timeout_s: float) -> None:
        commands.append(command)
        run_build(command, timeout_s)

    monkeypatch.setattr(build, "_run", run)
    first, second = ended(choose_arithmetic(WORTH_BYTES)), choose_arithmetic(WORTH_BYTES)
    assert isinstance(first, CompiledArithmetic)
    assert isinstance(second, CompiledArithmetic)
    assert first.library.path == second.library.path
    assert first.library.path.is_relative_to(workplace / "cache" / "plugins")
    sources = sorted(
        "/".join(Path(word).parts[-2:]) for command in commands for word in command if word.endswith(".cpp")
    )
    assert [source for source in sources if "avx512" not in source] == [
        "common/abi.cpp", "common/no_cuda.cpp", "quantize/cpu.cpp",
    ]  # fmt: skip


@pytest.mark.parametrize("wrong", ["count", "cast", "quantizer", "quantize_rows"])
def test_library_that_fails_its_self_test_is_not_used(
    wrong: str, build_kernels: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = build_kernels(*HOST_PLUGINS)
    monkeypatch.setenv("TRTSPEC_CACHE", str(path.parents[2]))
    monkeypatch.setattr(CompiledArithmetic, wrong, one_value_off(getattr(CompiledArithmetic, wrong)))
    assert isinstance(choose_arithmetic(1), NumpyArithmetic)
    assert caplog.messages == [
        f"{path} failed its self-test on this machine; converting weights with numpy, which is slower"
    ]


def one_value_off(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of arithmetic, or one that returns such a function, with the first value changed."""

    def change(*arguments: Any) -> Any:
        found = function(*arguments)
        if callable(found):
            return one_value_off(found)
        if isinstance(found, tuple):
            return one_value_off(lambda: found[0])(), *found[1:]
        if isinstance(found, int):
            return found + 1
        found = found.copy()
        found.flat[0] += 1
        return found

    return change


@pytest.mark.slow
def test_unloadable_library_is_ignored_and_rebuilt(
    workplace: Path, build_kernels: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    there = build_kernels(*HOST_PLUGINS).parents[1]
    shutil.copytree(there, workplace / "cache" / "plugins")
    monkeypatch.setenv("TRTSPEC_CACHE", str(workplace / "cache"))
    for path in (workplace / "cache").rglob("*.so"):
        path.write_bytes(b"\x7fELF")
    assert isinstance(choose_arithmetic(WORTH_BYTES - 1), NumpyArithmetic)
    monkeypatch.setattr(build, "_run", run_build)
    assert isinstance(ended(choose_arithmetic(WORTH_BYTES)), CompiledArithmetic)
