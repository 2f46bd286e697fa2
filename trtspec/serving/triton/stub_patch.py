# SPDX-License-Identifier: Apache-2.0
"""The Python stub of the nvidia-pytriton wheel, and a copy of it that reads the tensors of numpy 2.

The stub was compiled with pybind11 2.10, which looks for the size of an array's items where numpy 1 keeps it: 32 bytes
into `PyArray_Descr`. numpy 2 keeps `elsize` at 40, so each tensor would be garbled; and Python 3.13 has no numpy 1. The
distance is one byte of five load instructions. They are corrected in a copy of a stub that is known byte for byte.
"""

from __future__ import annotations

from pathlib import Path

from trtspec.core.hashing import file_sha256

ELSIZE_1, ELSIZE_2 = 32, 40  # where numpy 1 and numpy 2 keep it
# SHA-256 of a stub: where the bytes stand. `objdump -dC` shows them as `0x20(%rax)` in both constructors of PbTensor
# from an array (two each: texts and all others) and in pybind11::array's from a dtype, a shape and strides.
LOADS = {
    # nvidia-pytriton 0.7.0, x86-64, Python 3.13
    "7b701b4b4bc01ca7af0350eaffa4f2aed92f02b465b3494a265059e4d3ca6cf8": (0xA6C74, 0xA6E90, 0xA7664, 0xA78A9, 0xACA2B),
}


def is_known(stub: Path) -> bool:
    """Return whether a copy of this stub for numpy 2 can be made."""
    return file_sha256(stub) in LOADS


def for_numpy_2(stub: Path) -> bytes:
    """Return a known stub with its loads corrected for numpy 2."""
    content = bytearray(stub.read_bytes())
    for place in LOADS[file_sha256(stub)]:
        content[place] += ELSIZE_2 - ELSIZE_1
    return bytes(content)
