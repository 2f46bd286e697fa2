# SPDX-License-Identifier: Apache-2.0
"""Self-test of a library's conversion arithmetic on this machine: all 16-bit patterns are compared with numpy."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np

from trtspec.checkpoints.arithmetic import Arithmetic, NumpyArithmetic
from trtspec.kernels.bindings import KernelLibrary
from trtspec.kernels.quantize import CompiledArithmetic, Instructions, fastest_instructions
from trtspec.kernels.selftest import SelfTestCheck

SCALE = np.float32(0.0123)


def run_self_test(library: KernelLibrary) -> Iterator[SelfTestCheck]:
    """Yield a check for each instruction set and format."""
    bits = np.arange(1 << 16, dtype=np.uint16).reshape(64, -1)
    for each, dtype in product(range(Instructions.PORTABLE, fastest_instructions(library) + 1), ("BF16", "F16")):
        compiled = CompiledArithmetic(library, Instructions(each))
        expected = _results(NumpyArithmetic(), bits, dtype)
        differing = [
            name for name, found in _results(compiled, bits, dtype).items() if not _equal(found, expected[name])
        ]
        name = f"quantize, {compiled.instructions.name.lower()}, every pattern of {dtype}"
        yield SelfTestCheck(name, not differing, "; ".join(f"{one} differs" for one in differing))


def _results(arithmetic: Arithmetic, bits: Any, dtype: str) -> dict[str, tuple[Any, ...]]:
    casts = {
        f"cast to {target}": (arithmetic.cast(bits, dtype, target),) for target in ("BF16", "F16", "F32", "F8_E4M3")
    }
    rows = arithmetic.quantize_rows(bits, dtype)
    by_tensor = arithmetic.quantizer(dtype, SCALE)(bits)
    return {**casts, "count": arithmetic.count(bits, dtype), "by row": rows, "by tensor": (by_tensor,)}


def _equal(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    return all(map(np.array_equal, one, other))
