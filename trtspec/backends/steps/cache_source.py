# SPDX-License-Identifier: Apache-2.0
"""What planning reads of a hub model, kept in the store: where all steps are there too, nothing has to be downloaded.

A commit names its files for ever, so what was read of it once stays true.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from trtspec.checkpoints.safetensors import TensorInfo
from trtspec.checkpoints.source import Source, load_documents
from trtspec.core.files import Absent
from trtspec.recipe.schema import ModelSource
from trtspec.store.checksummed_json import load_sealed, seal
from trtspec.store.step import Inputs, Progress, Step
from trtspec.store.store import Store

HEADERS, SCHEMA = "headers.json", "trtspec.headers/1"


@dataclass(frozen=True)
class RememberSource(Step):
    """Keep config and tokenizer of one commit of a hub model, and of its weights the headers and digests.

    `pins` are the pickles, by name and SHA-256, that the weights were made of, or none. `source`, and `weights` with
    what the weight files are by their names, need to be there to `run` only.
    """

    VERSION: ClassVar[int] = 1

    model: str
    revision: str
    pins: tuple[tuple[str, str], ...]
    source: Source | None = field(default=None, metadata={"key": False})
    weights: Mapping[str, Absent] = field(default_factory=dict, metadata={"key": False})

    @property
    def name(self) -> str:
        """Return `remember-OWNER/NAME`."""
        return f"remember-{self.model}"

    def run(self, out: Path, inputs: Inputs, progress: Progress) -> None:
        """Copy what is small, and write down what is known of the rest."""
        if self.source is None:
            raise ValueError("only a source that is here can be remembered")
        for path in (*self.source.documents, *self.source.tokenizer_files):
            shutil.copyfile(path, out / path.name)
        tensors = [
            (tensor.name, tensor.dtype, tensor.shape, tensor.file.name, tensor.offset, tensor.nbytes)
            for tensor in self.source.tensors.values()
        ]
        (out / HEADERS).write_bytes(seal(SCHEMA, {"tensors": tensors, "weights": dict(self.weights)}))


def remember_source(asked: ModelSource, source: Source, weights: Mapping[str, Absent], store: Store) -> None:
    """Keep what was read of a hub model whose weight files are `weights`, unless it is kept already."""
    step = _step(asked, source, weights)
    if not store.peek(step.key).entry:
        store.build(step, Inputs({}), _Unheard())


def remembered_source(asked: ModelSource, store: Store) -> Source | None:
    """Return what is kept of a hub model, its weight files absent; None where nothing is."""
    entry = store.peek(_step(asked).key).entry if asked.revision else None
    if entry is None:
        return None
    root, headers = entry.files_dir, load_sealed(SCHEMA, entry.files_dir / HEADERS)
    if headers is None:
        return None
    tensors = {
        name: TensorInfo(name, dtype, tuple(shape), root / file, offset, nbytes)
        for name, dtype, shape, file, offset, nbytes in headers["tensors"]
    }
    config, quantization = load_documents(root)
    return Source(root, config, tensors, quantization, {name: tuple(each) for name, each in headers["weights"].items()})


def _step(asked: ModelSource, source: Source | None = None, weights: Mapping[str, Absent] | None = None) -> Step:
    pins = tuple(sorted(asked.sha256.items()))
    return RememberSource(asked.model, asked.revision or "", pins, source, weights or {})


class _Unheard:
    """Nobody waits for what is done in no time."""

    def advance(self, n_bytes: int) -> None:
        """Count nothing."""

    def resume(self, n_bytes: int) -> None:
        """Count nothing."""

    def say(self, text: str) -> None:
        """Say nothing."""
