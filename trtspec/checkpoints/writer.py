# SPDX-License-Identifier: Apache-2.0
"""Write a Hugging Face checkpoint directory atomically; tensors are copied from file to file in chunks."""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

from trtspec.checkpoints.safetensors import ITEM_BYTES, TensorInfo, lay_out, read_tensor
from trtspec.core.errors import CheckpointError
from trtspec.core.files import fsync_path, sync_directories

OnBytes = Callable[[int], None]


def ignore_progress(count: int) -> None:
    """Discard the byte count; this is the default `on_bytes` callback."""


@dataclass(frozen=True)
class Part:
    """A tensor to write: a stored tensor, literal bytes, or zeros if `data` is None."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: TensorInfo | bytes | None

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * ITEM_BYTES[self.dtype]

    @classmethod
    def copy(cls, name: str, tensor: TensorInfo) -> Part:
        """Return a part that copies a stored tensor under a new name."""
        return cls(name, tensor.dtype, tensor.shape, tensor)


def check_new(out: Path) -> None:
    if os.path.lexists(out):
        raise CheckpointError("already exists", where=str(out), hint="choose another directory")


@contextmanager
def new_directory(out: Path) -> Iterator[Path]:
    """Yield a temporary directory that is renamed to `out` when it is complete and synced to disk.

    Raises CheckpointError if `out` exists or cannot be written.
    """
    out = Path(os.path.abspath(out))
    check_new(out)
    temporary = out.with_name(f".{out.name}.tmp-{secrets.token_hex(8)}")
    try:
        temporary.mkdir(parents=True)
        yield temporary
        sync_directories(temporary)
        temporary.rename(out)
        fsync_path(out.parent)
    except OSError as error:
        raise CheckpointError(
            f"cannot be written: {error.strerror}", where=str(out), hint="choose another directory"
        ) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_config(root: Path, config: dict[str, Any]) -> None:
    path = root / "config.json"
    path.write_text(json.dumps(config, indent=2) + "\n")
    fsync_path(path)


def write_tensors(path: Path, parts: Sequence[Part], on_bytes: OnBytes = ignore_progress) -> None:
    """Write the parts, in this order, to a safetensors file; `on_bytes` receives the number of bytes just written."""
    layout = lay_out((each.name, each.dtype, each.shape) for each in parts)
    with path.open("wb") as file:
        file.write(layout.header)
        file.truncate(layout.nbytes)  # unwritten ranges read as zero
        for part in parts:
            file.seek(layout.offsets[part.name])
            _write(part, file, on_bytes)
        file.flush()
        os.fsync(file.fileno())


def _write(part: Part, file: BinaryIO, on_bytes: OnBytes) -> None:
    if isinstance(part.data, TensorInfo):
        for chunk in read_tensor(part.data):
            file.write(chunk)
            on_bytes(len(chunk))
    else:
        file.write(part.data or b"")
        on_bytes(part.nbytes)
