# SPDX-License-Identifier: Apache-2.0
"""nvcc compiles the kernels without warnings and without instructions that round differently from the host."""

from __future__ import annotations

import re

import pytest

from tests._support.compiled import compile_once
from tests.plugins.emulation import PLUGINS
from trtspec.core.errors import TrtspecError
from trtspec.kernels.build import probe_toolchain

ARCHITECTURE = "sm_90a"
STRICT = ("-Werror=all-warnings", "-Xcompiler=-Werror")
# non-IEEE instructions, and instructions from contraction only: the sources do not fuse doubles
INEXACT = re.compile(r"\.approx|\.ftz|\bex2\.|\blg2\.|\bfma\.rn\.f64|\bmad\.[a-z.]*f(32|64)")


@pytest.fixture(scope="module")
def ptx(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The PTX of each kernel, by its folder, with the flags of a build."""
    try:
        toolchain = probe_toolchain()
        toolchain.check_architectures((ARCHITECTURE,))
    except TrtspecError as error:
        pytest.skip(error.message)
    folder = tmp_path_factory.mktemp("ptx")
    includes = (str(PLUGINS), str(PLUGINS / "include"))
    texts = {}
    for kernel in PLUGINS.glob("*/kernel.cu"):
        output = folder / f"{kernel.parent.name}.ptx"
        command = toolchain.compile_command(str(kernel), str(output), includes, (ARCHITECTURE,))
        command = (*("-ptx" if word == "-c" else word for word in command), *STRICT)
        compile_once(command, folder)
        texts[kernel.parent.name] = output.read_text()
    return texts


def test_all_kernels_are_compiled(ptx: dict[str, str]) -> None:
    """One kernel per dtype of logits and kind of draft, and one per width of a move."""
    entries = {name: len(re.findall(r"\.entry", text)) for name, text in ptx.items()}
    assert entries == {"verify_chain": 9, "verify_block": 9, "verify_tree": 9, "compact_kv": 5}


def test_ptx_has_no_instructions_that_round_differently(ptx: dict[str, str]) -> None:
    for name, text in ptx.items():
        assert INEXACT.findall(text) == [], name
    assert "fma.rn.f32" in ptx["verify_chain"], "where it is written, it is fused"


def test_rows_are_loaded_with_vector_instructions(ptx: dict[str, str]) -> None:
    for name in ("verify_chain", "verify_block", "verify_tree"):
        for instruction in ("cp.async.cg.shared.global", "ld.global.nc.v4.u32", "ld.shared.v4.u32"):
            assert instruction in ptx[name], (name, instruction)
