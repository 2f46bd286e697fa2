# SPDX-License-Identifier: Apache-2.0
"""Resolve the model of a recipe to a local directory: a given path, a hub snapshot, or converted pickles.

Locating a model is cheap and free of side effects. Preparing it may download and unpickle files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from trtspec.checkpoints.hub import fetch_snapshot, is_fetched, newest_commit
from trtspec.checkpoints.pickles import unpickle, unpickled_dir
from trtspec.checkpoints.previews import make_preview, preview_dir
from trtspec.checkpoints.source import NotPreparedError, Source, load_source, locate_model, snapshot_dir
from trtspec.core.errors import CheckpointError
from trtspec.recipe.schema import COMMIT, HUB_ID, ModelSource, is_directory

OnProgress = Callable[[str, int, int], None]


def locate_source(source: ModelSource) -> Path:
    """Return the directory with a model's config, tokenizer and *.safetensors.

    Raises CheckpointError if it does not exist, and NotPreparedError, with a hint, if `prepare_source` can create it.
    """
    root = locate_model(source.model, source.revision)
    if source.revision and not is_fetched(root, source.sha256):
        raise NotPreparedError(
            f"{source.model} at commit {source.revision} is incomplete in the hub cache",
            where=str(root),
            hint="trtspec build downloads the rest",
        )
    if not source.sha256:
        return root
    unpickled = unpickled_dir(root, source.sha256)
    if not unpickled.is_dir():
        hint = "trtspec build converts the pickles pinned by sha256 to safetensors"
        raise NotPreparedError("its weights are pickles that were not converted yet", where=str(root), hint=hint)
    return unpickled


def is_hub_id(written: str) -> bool:
    """Return whether a command line argument has the syntax of a hub id and is not the name of a local file."""
    is_there = os.path.exists(os.path.expanduser(written))
    return not is_there and not is_directory(written) and re.fullmatch(HUB_ID, written) is not None


class Commit(NamedTuple):
    """A commit of a hub model, and the reason for choosing it."""

    revision: str
    why: str


def choose_commit(model: str) -> Commit:
    """Return the newest commit of a hub model or, offline, the last used; raise CheckpointError if none is found."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE and (revision := _cached_commit(model)):
        return Commit(revision, "the newest commit in the hub cache when this was written")
    try:
        return Commit(newest_commit(model), "the newest commit when this was written")
    except CheckpointError as error:
        hint = f"{error.hint}; there is no directory ./{model} either"
        raise CheckpointError(error.message, where=error.where, hint=hint) from error


def _cached_commit(model: str) -> str | None:
    """Return the commit that was downloaded last or whose preview was used last."""
    folders = (snapshot_dir(model, "none").parent, preview_dir(model, "none").parent)
    found = [path for folder in folders for path in folder.glob("*") if re.fullmatch(COMMIT, path.name)]
    return max(found, key=lambda path: path.stat().st_mtime).name if found else None


def find_source(asked: ModelSource) -> Source:
    """Load a local model, or its preview from the hub if it is not downloaded."""
    try:
        return load_source(locate_source(asked))
    except NotPreparedError:
        return preview_source(asked)


def preview_source(asked: ModelSource) -> Source:
    """Return the preview of a hub model that is not downloaded, fetching it if it is not cached.

    Raises CheckpointError as `make_preview` does. Raises NotPreparedError for pickles, which cannot be previewed, and
    if huggingface_hub is not installed.
    """
    if not asked.revision or asked.sha256:
        return load_source(locate_source(asked))
    try:
        return make_preview(asked.model, asked.revision)
    except ModuleNotFoundError:
        hint = "install huggingface_hub to inspect its headers; trtspec build downloads it"
        where = f"{asked.model} at commit {asked.revision}"
        raise NotPreparedError("not in the hub cache", where=where, hint=hint) from None


def prepare_source(source: ModelSource, on_progress: OnProgress) -> None:
    """Download and unpickle a model so that `locate_source` finds it; do nothing if all files are present.

    `on_progress` receives the action, the bytes done and their total. Raises CheckpointError if preparation fails.
    """
    if source.revision and not is_fetched(snapshot_dir(source.model, source.revision), source.sha256):
        action = f"download {source.model}"
        on_progress(action, 0, 0)
        fetch_snapshot(
            source.model, source.revision, source.sha256, lambda done, total: on_progress(action, done, total)
        )
    if source.sha256:
        _unpickle(source, locate_model(source.model, source.revision), on_progress)


def _unpickle(source: ModelSource, root: Path, on_progress: OnProgress) -> None:
    if unpickled_dir(root, source.sha256).is_dir():
        return
    sizes = [path.stat().st_size for name in source.sha256 if (path := root / name).is_file()]
    done = 0

    def on_bytes(count: int) -> None:
        nonlocal done
        done += count
        on_progress(f"unpickle {source.model}", done, sum(sizes))

    unpickle(root, source.sha256, on_bytes)
