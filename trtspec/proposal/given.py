# SPDX-License-Identifier: Apache-2.0
"""The checkpoints that a recipe is proposed for: directories and hub ids, read as far as headers go."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import prod
from pathlib import Path

from trtspec.checkpoint.hub import is_fetched
from trtspec.checkpoint.hub_preview import make_preview, newest_commit
from trtspec.checkpoint.prepare import locate_source
from trtspec.checkpoint.source import Source, load_source, locate_model, snapshot_dir
from trtspec.errors import CheckpointError
from trtspec.recipe.schema import HUB_ID, ModelSource, is_directory

Locate = Callable[[ModelSource], Path]


@dataclass(frozen=True)
class Given:
    """A checkpoint: as a recipe names it, a directory by its absolute path, its headers, and why its revision."""

    asked: ModelSource
    source: Source
    revision_why: str = ""

    @property
    def num_parameters(self) -> int:
        """Return the number of all that its tensors hold."""
        return sum(prod(tensor.shape) for tensor in self.source.tensors.values())

    @property
    def base_name(self) -> str:
        """Return the last part of what it is called."""
        return self.asked.model.rstrip("/").rpartition("/")[2]


def open_checkpoint(written: str, folder: Path) -> Given:
    """Read what the command line calls a checkpoint; what the hub has of it is kept in the empty directory `folder`.

    A hub id gets its newest commit. Raises CheckpointError for what is no checkpoint, or cannot be had.
    """
    return _open_hub(written, folder) if _is_hub_id(written) else _open_directory(written)


def locator(given: Iterable[Given]) -> Locate:
    """Return a function that finds these checkpoints where they were read, and others as a build does."""
    roots = {each.asked.model: each.source.root for each in given}
    return lambda asked: roots.get(asked.model) or locate_source(asked)


def _is_hub_id(written: str) -> bool:
    is_there = os.path.exists(os.path.expanduser(written))
    return not is_there and not is_directory(written) and re.fullmatch(HUB_ID, written) is not None


def _open_directory(written: str) -> Given:
    path = os.path.abspath(os.path.expanduser(written))
    return Given(ModelSource(model=path), _read(locate_model(path, None)))


def _read(root: Path) -> Source:
    if not (root / "config.json").is_file():
        hint = "a checkpoint is a directory with config.json and *.safetensors"
        raise CheckpointError("no config.json", where=str(root), hint=hint)
    return load_source(root)


def _open_hub(written: str, folder: Path) -> Given:
    try:
        revision, why = newest_commit(written)
    except CheckpointError as error:
        hint = f"{error.hint}; write ./{written} where a directory is meant"
        raise CheckpointError(error.message, where=error.where, hint=hint) from error
    asked = ModelSource(model=written, revision=revision)
    snapshot = snapshot_dir(written, revision)
    if is_fetched(snapshot, ()):
        return Given(asked, _read(snapshot), why)
    folder.mkdir()
    make_preview(written, revision, folder)
    return Given(asked, _read(folder), why)
