# SPDX-License-Identifier: Apache-2.0
"""A patch of the nvidia-pytriton wheel's Python stub for numpy 2.

The stub was compiled with pybind11 2.10, which reads an array's item size at byte 32 of `PyArray_Descr`, its place in
numpy 1. numpy 2 stores `elsize` at byte 40, so the stub would garble every tensor, and numpy 1 does not support Python
3.13. The offset is one byte in five load instructions. They are corrected in a copy of a stub with a known digest.
"""

from __future__ import annotations

from pathlib import Path

from trtspec.core.hashing import file_sha256

ELSIZE_1, ELSIZE_2 = 32, 40  # offset in numpy 1 and numpy 2
# SHA-256 of a stub: offsets of the bytes to change. `objdump -dC` shows them as `0x20(%rax)` in both constructors of
# PbTensor from an array (two each: strings and all other types) and in pybind11::array's from a dtype, a shape and
# strides.
LOADS = {
    # nvidia-pytriton 0.7.0, x86-64, Python 3.13
    "7b701b4b4bc01ca7af0350eaffa4f2aed92f02b465b3494a265059e4d3ca6cf8": (0xA6C74, 0xA6E90, 0xA7664, 0xA78A9, 0xACA2B),
}


def is_patchable(stub: Path) -> bool:
    """Return whether this stub can be patched."""
    return file_sha256(stub) in LOADS


def patch_for_numpy_2(stub: Path) -> bytes:
    """Return the content of a known stub, patched for numpy 2."""
    content = bytearray(stub.read_bytes())
    for place in LOADS[file_sha256(stub)]:
        content[place] += ELSIZE_2 - ELSIZE_1
    return bytes(content)
