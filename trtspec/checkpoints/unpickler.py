# SPDX-License-Identifier: Apache-2.0
"""Convert a pickle to safetensors: `python -I -m trtspec.checkpoints.unpickler PICKLE OUT`.

This is the only module that opens pickles. It runs in a separate process with an empty environment. torch's restricted
unpickler creates tensors and plain containers and calls nothing else. A pickle that references other objects is
rejected before it is opened. Exits with 0, or with the error in the last line of stderr.
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
from trtspec.core.files import reserve_space

if TYPE_CHECKING:
    import torch

DTYPES = {"float64": "F64", "float32": "F32", "float16": "F16", "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3",
          "float8_e5m2": "F8_E5M2", "int64": "I64", "int32": "I32", "int16": "I16", "int8": "I8", "uint64": "U64",
          "uint32": "U32", "uint16": "U16", "uint8": "U8", "bool": "BOOL"}  # fmt: skip

# Bytes per item of torch's storages; pickles store item counts.
STORAGES = {"DoubleStorage": 8, "FloatStorage": 4, "HalfStorage": 2, "BFloat16Storage": 2, "LongStorage": 8,
            "IntStorage": 4, "ShortStorage": 2, "CharStorage": 1, "ByteStorage": 1, "BoolStorage": 1,
            "UntypedStorage": 1}  # fmt: skip
# Errors of torch's unpickler for a malformed file.
MALFORMED = (UnpicklingError, zipfile.BadZipFile, RuntimeError, ValueError, LookupError, EOFError, TypeError,
             AttributeError, StopIteration)  # fmt: skip
CHUNK = 1 << 20
SPACE, SPARE = 48 << 30, 64 << 20  # address space of torch's libraries; size of the output's header


def main(pickle: str, out: str) -> None:
    """Write the tensors of `pickle` to the new safetensors file `out`; tied tensors are written once per name."""
    _confine(os.stat(pickle).st_size)
    tensors = _load(pickle)
    for name, tensor in tensors.items():
        _check(name, tensor)
    # Tied embeddings at most double a small model's size, but a pickle can also expand one number to any shape.
    needed, there = sum(tensor.nbytes for tensor in tensors.values()), os.stat(pickle).st_size
    if needed > 2 * there:
        _refuse(f"its tensors need {needed:,} bytes, but the file has {there:,}")
    with ThreadPoolExecutor(
        1
    ) as pool:  # in parallel with the writing, which waits for the disk; CRC-32 releases the GIL
        damaged = pool.submit(_damaged_record, pickle)
        _write(tensors, Path(out))
        if name := damaged.result():
            _refuse(f"its record {name} is damaged: the checksum differs")


def _confine(nbytes: int) -> None:
    """Limit this process's address space, for libraries and the mapped file, and the size of its output."""
    for kind, limit in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_AS, SPACE + 4 * nbytes),
        (resource.RLIMIT_FSIZE, 2 * nbytes + SPARE),
    ):
        _, most = resource.getrlimit(kind)
        resource.setrlimit(kind, (limit if most == resource.RLIM_INFINITY else min(limit, most), most))


def _damaged_record(path: str) -> str:
    """Return the name of the first record with a wrong CRC-32, or ""."""
    with zipfile.ZipFile(path) as archive:
        for record in archive.infolist():
            if not record.CRC:  # torch can be configured to write no checksums
                continue
            try:
                with archive.open(record) as file:
                    while file.read(CHUNK):
                        pass
            except (zipfile.BadZipFile, EOFError, zlib.error):
                return record.filename
    return ""


class _Inert(dict[Any, Any]):
    """Placeholder for every object that a pickle would create."""

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
    """Unpickler that collects the storage sizes of a pickle, {record: bytes}, without creating storages."""

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
    """Reject a file with records shorter than their tensors: torch would read beyond the record."""
    with zipfile.ZipFile(path) as archive:
        sizes = {record.filename.partition("/")[2]: record.file_size for record in archive.infolist()}
        name = next(record.filename for record in archive.infolist() if record.filename.endswith("/data.pkl"))
        with archive.open(name) as file:
            storages = _Storages(file)
            storages.load()
    for key, needed in storages.found.items():
        there = sizes.get(f"data/{key}", 0)
        if there < needed:
            _refuse(f"its record data/{key} has {there:,} bytes, but its tensors need {needed:,}")


def _refuse(message: str) -> NoReturn:
    sys.exit(message)


def _load(pickle: str) -> dict[str, torch.Tensor]:
    import torch

    if not zipfile.is_zipfile(pickle):
        _refuse("not written by torch.save (torch 1.6 or later)")
    try:
        if foreign := torch.serialization.get_unsafe_globals_in_checkpoint(pickle):
            _refuse(f"not opened: it references {', '.join(sorted(foreign))}, which tensors do not need")
        _check_storages(pickle)
        loaded = torch.load(pickle, map_location="cpu", weights_only=True, mmap=True)
    except MALFORMED as error:
        reason = str(error).strip().split("\n")[0]
        _refuse(f"cannot be opened: {reason or type(error).__name__}")
    if not isinstance(loaded, dict) or not loaded:
        _refuse(f"contains a {type(loaded).__name__}, not a mapping from names to tensors")
    return loaded


def _check(name: object, tensor: object) -> None:
    import torch

    if not isinstance(name, str):
        _refuse(f"contains the key {name!r}, which is not a tensor name")
    if isinstance(tensor, dict):
        _refuse(f"contains a mapping at {name!r}; save that mapping as a separate file, e.g. torch.save(x[{name!r}])")
    if not isinstance(tensor, torch.Tensor):
        _refuse(f"contains a {type(tensor).__name__} at {name!r}, not a tensor")
    if tensor.layout != torch.strided or tensor.device.type != "cpu" or tensor.is_quantized:
        _refuse(f"tensor {name!r} is sparse, quantized or without data, so it lacks plain bytes")
    if _dtype(tensor) not in DTYPES:
        _refuse(
            f"tensor {name!r} has the dtype {_dtype(tensor)}, which is not supported in safetensors files of weights"
        )


def _dtype(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")


def _write(tensors: dict[str, torch.Tensor], out: Path) -> None:
    import torch

    layout = lay_out((name, DTYPES[_dtype(tensor)], tuple(tensor.shape)) for name, tensor in tensors.items())
    with out.open("wb") as file:
        reserve_space(file.fileno(), layout.nbytes)
        file.write(layout.header)
        for tensor in tensors.values():
            file.write(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().data)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except OSError as error:
        _refuse(f"cannot be converted: {error.strerror}")
