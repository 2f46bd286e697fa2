# SPDX-License-Identifier: Apache-2.0
"""The checkpoints for a proposed recipe: directories and hub ids, of which only headers are read."""

from __future__ import annotations

import os
from dataclasses import dataclass
from math import prod
from pathlib import Path

from trtspec.checkpoints.resolve import choose_commit, find_source, is_hub_id
from trtspec.checkpoints.source import Source, load_source, locate_model
from trtspec.core.errors import CheckpointError
from trtspec.recipe.schema import ModelSource


@dataclass(frozen=True)
class InputModel:
    """A checkpoint: its recipe entry (directories as absolute paths), its headers, and the reason for its revision."""

    asked: ModelSource
    source: Source
    revision_why: str = ""

    @property
    def num_parameters(self) -> int:
        """Return the total number of elements of its tensors."""
        return sum(prod(tensor.shape) for tensor in self.source.tensors.values())

    @property
    def base_name(self) -> str:
        """Return the last component of its name."""
        return self.asked.model.rstrip("/").rpartition("/")[2]


def open_checkpoint(written: str) -> InputModel:
    """Read a checkpoint given on the command line; a hub id gets its newest commit.

    CheckpointError if it is not a checkpoint or not accessible.
    """
    return _open_hub(written) if is_hub_id(written) else _open_directory(written)


def _open_directory(written: str) -> InputModel:
    path = os.path.abspath(os.path.expanduser(written))
    return InputModel(ModelSource(model=path), _read(locate_model(path, None)))


def _read(root: Path) -> Source:
    if not (root / "config.json").is_file():
        hint = "a checkpoint is a directory with config.json and *.safetensors"
        raise CheckpointError("no config.json", where=str(root), hint=hint)
    return load_source(root)


def _open_hub(written: str) -> InputModel:
    revision, why = choose_commit(written)
    asked = ModelSource(model=written, revision=revision)
    return InputModel(asked, find_source(asked), why)
