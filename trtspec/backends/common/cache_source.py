# SPDX-License-Identifier: Apache-2.0
"""Caches the data of a hub model that planning reads, so that planning a cached model downloads nothing.

A commit is immutable, so cached data does not expire.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from trtspec.checkpoints.safetensors import TensorInfo
from trtspec.checkpoints.source import Source, load_documents
from trtspec.core.files import AbsentFile
from trtspec.recipe.schema import ModelSource
from trtspec.store.digest import dump_checksummed, load_checksummed
from trtspec.store.step import Inputs, Step, StepProgress
from trtspec.store.store import Store

HEADERS, SCHEMA = "headers.json", "trtspec.headers/1"


@dataclass(frozen=True)
class RememberSource(Step):
    """Step that stores config and tokenizer of one commit of a hub model, and the headers and digests of its weights.

    `pins` are the name and SHA-256 of each pickle from which the weights were converted. `source` and `weights`, the
    weight files by name, are used only by `run`.
    """

    VERSION: ClassVar[int] = 1

    model: str
    revision: str
    pins: tuple[tuple[str, str], ...]
    source: Source | None = field(default=None, metadata={"key": False})
    weights: Mapping[str, AbsentFile] = field(default_factory=dict, metadata={"key": False})

    @property
    def name(self) -> str:
        return f"remember-{self.model}"

    @property
    def is_shared(self) -> bool:
        """Plans trust these digests: each machine computes its own."""
        return False

    def run(self, out: Path, inputs: Inputs, progress: StepProgress) -> None:
        if self.source is None:
            raise ValueError("the source is missing")
        for path in (*self.source.documents, *self.source.tokenizer_files):
            shutil.copyfile(path, out / path.name)
        tensors = [
            (tensor.name, tensor.dtype, tensor.shape, tensor.file.name, tensor.offset, tensor.nbytes)
            for tensor in self.source.tensors.values()
        ]
        (out / HEADERS).write_bytes(dump_checksummed(SCHEMA, {"tensors": tensors, "weights": dict(self.weights)}))


def store_source(asked: ModelSource, source: Source, weights: Mapping[str, AbsentFile], store: Store) -> None:
    """Store the data that planning read of a hub model, with its weight files, unless it is stored already."""
    store.obtain(_step(asked, source, weights))


def load_stored_source(asked: ModelSource, store: Store) -> Source | None:
    """Return a hub model from the store, without its weight files, or None if it is not stored."""
    entry = store.peek(_step(asked).key).entry if asked.revision else None
    if entry is None:
        return None
    root, headers = entry.files_dir, load_checksummed(SCHEMA, entry.files_dir / HEADERS)
    if headers is None:
        return None
    tensors = {
        name: TensorInfo(name, dtype, tuple(shape), root / file, offset, nbytes)
        for name, dtype, shape, file, offset, nbytes in headers["tensors"]
    }
    config, quantization = load_documents(root)
    return Source(root, config, tensors, quantization, {name: tuple(each) for name, each in headers["weights"].items()})


def _step(asked: ModelSource, source: Source | None = None, weights: Mapping[str, AbsentFile] | None = None) -> Step:
    pins = tuple(sorted(asked.sha256.items()))
    return RememberSource(asked.model, asked.revision or "", pins, source, weights or {})
