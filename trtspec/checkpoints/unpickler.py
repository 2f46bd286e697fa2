# SPDX-License-Identifier: Apache-2.0
"""The only code that opens a pickle: `python -I -m trtspec.checkpoints.unpickler PICKLE OUT` writes it as safetensors.

Runs in a process of its own with an empty environment. torch's restricted unpickler makes tensors and plain containers
and calls nothing else; what a pickle asks for beyond them is refused before it is opened. Ends with 0, or with a last
line on stderr that says what is wrong.
"""

from __future__ import annotations

import os
import resource
import sys
import zipfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from pickle import Unpickler, UnpicklingError
from typing import IO, TYPE_CHECKING, Any, NoReturn

from trtspec.checkpoints.safetensors import lay_out
from trtspec.core.files import reserve

if TYPE_CHECKING:
    import torch

DTYPES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3",
          "float8_e5m2": "F8_E5M2", "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "uint64": "U64",
          "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL"}  # fmt: skip

# Bytes of an item of torch's storages, by which pickles count them.
STORAGES = {"DoubleStorage": 8, "FloatStorage": 4, "HalfStorage": 2, "BFloat16Storage": 2, "LongStorage": 8,
            "IntStorage": 4, "ShortStorage": 2, "CharStorage": 1, "ByteStorage": 1, "BoolStorage": 1,
            "UntypedStorage": 1}  # fmt: skip
CHUNK = 1 << 20
SPACE, SPARE = 48 << 30, 64 << 20  # of address space for torch's libraries, and for the header of what is written


def main(pickle: str, out: str) -> None:
    """Write the tensors of `pickle` to the new safetensors file `out`; a shared tensor is written for each name."""
    _confine(os.stat(pickle).st_size)
    tensors = _load(pickle)
    for name, tensor in tensors.items():
        _check(name, tensor)
    # Tied embeddings double a small model at most; a pickle can as well expand one number to any shape.
    needed, there = sum(tensor.nbytes for tensor in tensors.values()), os.stat(pickle).st_size
    if needed > 2 * there:
        _refuse(f"its tensors need {needed:,} bytes and the file has {there:,}")
    with ThreadPoolExecutor(1) as pool:  # beside the writing, which waits for a disk; CRC-32 leaves Python's lock
        damaged = pool.submit(_damaged_record, pickle)
        _write(tensors, Path(out))
        if name := damaged.result():
            _refuse(f"its record {name} is damaged: the checksum differs")


def _confine(nbytes: int) -> None:
    """Limit this process: its libraries and the mapped file take address space, its output is one file."""
    for what, wanted in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_AS, SPACE + 4 * nbytes),
        (resource.RLIMIT_FSIZE, 2 * nbytes + SPARE),
    ):
        _, most = resource.getrlimit(what)
        resource.setrlimit(what, (wanted if most == resource.RLIM_INFINITY else min(wanted, most), most))


def _damaged_record(path: str) -> str:
    """Return the name of a record whose bytes have another CRC-32 than the archive says, "" where there is none."""
    with zipfile.ZipFile(path) as archive:
        for record in archive.infolist():
            if not record.CRC:  # torch writes none where it is told to compute none
                continue
            try:
                with archive.open(record) as file:
                    while file.read(CHUNK):
                        pass
            except (zipfile.BadZipFile, EOFError, zlib.error):
                return record.filename
    return ""


class _Inert(dict[Any, Any]):
    """In the place of whatever a pickle makes."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()

    def __call__(self, *_: Any, **__: Any) -> _Inert:
        return _Inert()

    def __setstate__(self, _: Any) -> None:
        return

    def append(self, _: Any) -> None:
        return

    def extend(self, _: Any) -> None:
        return


class _Storages(Unpickler):
    """Collects (record, bytes) of the storages that a pickle describes, and makes nothing."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        self.found: dict[str, int] = {}

    def find_class(self, module: str, name: str) -> Any:
        return name if name.endswith("Storage") else _Inert

    def persistent_load(self, described: Any) -> _Inert:
        _, kind, key, _, count = described
        if isinstance(count, int) and (size := STORAGES.get(str(kind))):
            self.found[str(key)] = max(self.found.get(str(key), 0), count * size)
        return _Inert()


def _check_storages(path: str) -> None:
    """Refuse a file whose records are shorter than its tensors: torch would read on into what follows."""
    with zipfile.ZipFile(path) as archive:
        sizes = {record.filename.partition("/")[2]: record.file_size for record in archive.infolist()}
        name = next(record.filename for record in archive.infolist() if record.filename.endswith("/data.pkl"))
        with archive.open(name) as file:
            storages = _Storages(file)
            storages.load()
    for key, needed in storages.found.items():
        there = sizes.get(f"data/{key}", 0)
        if there < needed:
            _refuse(f"its record data/{key} has {there:,} bytes, and the tensors in it {needed:,}")


def _refuse(message: str) -> NoReturn:
    sys.exit(message)


def _load(pickle: str) -> dict[str, torch.Tensor]:
    import torch

    if not zipfile.is_zipfile(pickle):
        _refuse("not a file of torch.save (torch 1.6 or later)")
    try:
        if foreign := torch.serialization.get_unsafe_globals_in_checkpoint(pickle):
            _refuse(f"it asks for {', '.join(sorted(foreign))}, which no tensor needs: it was not opened")
        _check_storages(pickle)
        loaded = torch.load(pickle, map_location="cpu", weights_only=True, mmap=True)
    except (
        UnpicklingError,
        RuntimeError,
        ValueError,
        KeyError,
        EOFError,
        TypeError,
        AttributeError,
        IndexError,
        StopIteration,
        zipfile.BadZipFile,
    ) as error:
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
