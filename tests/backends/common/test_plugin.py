# SPDX-License-Identifier: Apache-2.0
"""The step of an artifact's compiled kernels, whose key depends on the library's sources."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from trtspec.backends.common import steps
from trtspec.backends.common.steps import CompilePlugins
from trtspec.core.errors import StepError
from trtspec.kernels.build import LIBRARY, LibrarySpec, Toolchain
from trtspec.store.step import Inputs

SPEC = LibrarySpec(("verify_chain",), ("sm_90a",), "0" * 64, Toolchain("x86_64", "g++ 12", "13.0", "g++", "nvcc"))


class Told:
    def __init__(self) -> None:
        self.said: list[str] = []

    def advance(self, n_bytes: int) -> None: ...

    def resume(self, n_bytes: int) -> None: ...

    def set_message(self, text: str) -> None:
        self.said.append(text)


def test_plugin_step_writes_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = tmp_path / "made.so"
    made.write_bytes(b"library")
    monkeypatch.setattr(steps, "build_library", lambda spec: made)
    (tmp_path / "out").mkdir()
    told = Told()
    CompilePlugins(SPEC).run(tmp_path / "out", Inputs({}), told)
    assert [path.name for path in (tmp_path / "out").iterdir()] == [LIBRARY]
    assert (tmp_path / "out" / LIBRARY).read_bytes() == b"library"
    assert told.said == ["verify_chain"]


def test_plugin_step_key_depends_on_sources_architectures_and_nvcc_version() -> None:
    step = CompilePlugins(SPEC)
    assert step.name == "compile-plugins"
    assert step.dependencies == ()
    assert CompilePlugins(replace(SPEC, toolchain=replace(SPEC.toolchain, cxx="/opt/g++"))).key == step.key
    for other in (
        replace(SPEC, sources="1" * 64),
        replace(SPEC, architectures=("sm_80",)),
        replace(SPEC, toolchain=replace(SPEC.toolchain, nvcc_version="13.1")),
    ):
        assert CompilePlugins(other).key != step.key


def test_machine_with_another_compiler_refuses_the_step(monkeypatch: pytest.MonkeyPatch) -> None:
    other = replace(SPEC, toolchain=replace(SPEC.toolchain, cxx_version="g++ 13", cxx="/opt/g++"))
    monkeypatch.setattr(steps, "plan_library", lambda plugins, architectures: other)
    CompilePlugins(other).check_machine()
    with pytest.raises(StepError, match=r"compile-plugins as it was planned: C\+\+ compiler is g\+\+ 13 instead of g"):
        CompilePlugins(SPEC).check_machine()
