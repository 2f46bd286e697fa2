# SPDX-License-Identifier: Apache-2.0
"""The only code that opens a pickle: `python -I -m trtspec.checkpoint.unpickler PICKLE OUT` writes it as safetensors.

Runs in a process of its own with an empty environment. torch's restricted unpickler makes tensors and plain containers
and calls nothing else; what a pickle asks for beyond them is refused before it is opened. Ends with 0, or with a last
line on stderr that says what is wrong.
"""

from __future__ import annotations

import os
import sys
import zipfile
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING, NoReturn

from trtspec.checkpoint.safetensors import lay_out
from trtspec.files import reserve

if TYPE_CHECKING:
    import torch

DTYPES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3",
          "float8_e5m2": "F8_E5M2", "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "uint64": "U64",
          "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL"}  # fmt: skip


def main(pickle: str, out: str) -> None:
    """Write the tensors of `pickle` to the new safetensors file `out`; a shared tensor is written for each name."""
    tensors = _load(pickle)
    for name, tensor in tensors.items():
        _check(name, tensor)
    # Tied embeddings double a small model at most; a pickle can as well expand one number to any shape.
    needed, there = sum(tensor.nbytes for tensor in tensors.values()), os.stat(pickle).st_size
    if needed > 2 * there:
        _refuse(f"its tensors need {needed:,} bytes and the file has {there:,}")
    _write(tensors, Path(out))


def _refuse(message: str) -> NoReturn:
    sys.exit(message)


def _load(pickle: str) -> dict[str, torch.Tensor]:
    import torch

    if not zipfile.is_zipfile(pickle):
        _refuse("not a file of torch.save (torch 1.6 or later)")
    try:
        if foreign := torch.serialization.get_unsafe_globals_in_checkpoint(pickle):
            _refuse(f"it asks for {', '.join(sorted(foreign))}, which no tensor needs: it was not opened")
        loaded = torch.load(pickle, map_location="cpu", weights_only=True, mmap=True)
    except (UnpicklingError, RuntimeError, ValueError, KeyError, EOFError) as error:
        reason = str(error).strip().split("\n")[0]
        _refuse(f"cannot be opened: {reason or type(error).__name__}")
    if not isinstance(loaded, dict) or not loaded:
        _refuse(f"holds a {type(loaded).__name__}, not tensors by their names")
    return loaded


def _check(name: object, tensor: object) -> None:
    import torch

    if not isinstance(name, str):
        _refuse(f"holds something under {name!r}, which is no tensor's name")
    if isinstance(tensor, dict):
        _refuse(f"holds a mapping under {name!r}: save what is inside as a file of its own, as torch.save(x[{name!r}])")
    if not isinstance(tensor, torch.Tensor):
        _refuse(f"holds a {type(tensor).__name__} under {name!r}, not a tensor")
    if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
        _refuse(f"tensor {name!r} is sparse, quantized or empty of data, and has no plain bytes")
    if _dtype(tensor) not in DTYPES:
        _refuse(f"tensor {name!r} has the dtype {_dtype(tensor)}, which safetensors files of weights do not have")


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _write(tensors: dict[str, torch.Tensor], out: Path) -> None:
    import torch

    layout = lay_out((name, DTYPES[_dtype(tensor)], tuple(tensor.shape)) for name, tensor in tensors.items())
    with out.open("wb") as file:
        reserve(file.fileno(), layout.nbytes)
        file.write(layout.header)
        for tensor in tensors.values():
            file.write(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except OSError as error:
        _refuse(f"cannot be converted: {error.strerror}")
