# SPDX-License-Identifier: Apache-2.0
"""From what a recipe says of a model to the directory it is read from: a directory, a hub id, or pickles in either.

Finding it is cheap and changes nothing; preparing it may download and unpickle, and then it is found.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from trtspec.checkpoints.hub import fetch_snapshot, is_fetched
from trtspec.checkpoints.hub_client import newest_commit
from trtspec.checkpoints.hub_metadata import make_preview
from trtspec.checkpoints.metadata_cache import preview_dir
from trtspec.checkpoints.pickles import unpickle, unpickled_dir
from trtspec.checkpoints.source import NotPreparedError, Source, load_source, locate_model, snapshot_dir
from trtspec.core.errors import CheckpointError
from trtspec.recipe.schema import COMMIT, HUB_ID, ModelSource, is_directory

OnProgress = Callable[[str, int, int], None]


def locate_source(source: ModelSource) -> Path:
    """Return the directory with a model's config, tokenizer and *.safetensors.

    Raises CheckpointError where there is none, NotPreparedError where there is none yet; its hint says what makes it.
    """
    root = locate_model(source.model, source.revision)
    if source.revision and not is_fetched(root, source.sha256):
        raise NotPreparedError(
            f"{source.model} at commit {source.revision} is only in part in the hub cache",
            where=str(root),
            hint="trtspec build downloads the rest",
        )
    if not source.sha256:
        return root
    unpickled = unpickled_dir(root, source.sha256)
    if not unpickled.is_dir():
        hint = "trtspec build opens those that sha256 pins, and makes safetensors of them"
        raise NotPreparedError("its weights are pickles that were not opened yet", where=str(root), hint=hint)
    return unpickled


def is_hub_id(written: str) -> bool:
    """Tell whether a command line means a hub's model: it is spelled as one, and no file here is called so."""
    is_there = os.path.exists(os.path.expanduser(written))
    return not is_there and not is_directory(written) and re.fullmatch(HUB_ID, written) is not None


class Commit(NamedTuple):
    """A commit of a hub model, and why that one."""

    revision: str
    why: str


def choose_commit(model: str) -> Commit:
    """Return the newest commit of a hub model, offline the one that was last looked at; CheckpointError for none."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE and (revision := _known_commit(model)):
        return Commit(revision, "the newest commit in the hub cache when this was written")
    try:
        return Commit(newest_commit(model), "the newest commit when this was written")
    except CheckpointError as error:
        hint = f"{error.hint}; write ./{model} where a directory is meant"
        raise CheckpointError(error.message, where=error.where, hint=hint) from error


def _known_commit(model: str) -> str | None:
    """Return the commit that was last put into the hub cache, or of which a preview was used last."""
    folders = (snapshot_dir(model, "none").parent, preview_dir(model, "none").parent)
    found = [path for folder in folders for path in folder.glob("*") if re.fullmatch(COMMIT, path.name)]
    return max(found, key=lambda path: path.stat().st_mtime).name if found else None


def find_source(asked: ModelSource) -> Source:
    """Return a model as far as it can be read: all of it where it is here, else what the hub tells of it."""
    try:
        return load_source(locate_source(asked))
    except NotPreparedError:
        return preview_source(asked)


def preview_source(asked: ModelSource) -> Source:
    """Return what the hub tells of a model that is not here, which is kept; raises CheckpointError as `make_preview`.

    Pickles are not looked into: NotPreparedError.
    """
    if not asked.revision or asked.sha256:
        return load_source(locate_source(asked))
    try:
        return make_preview(asked.model, asked.revision)
    except ModuleNotFoundError:
        hint = "install huggingface_hub, by which its headers are looked at, and trtspec build downloads it"
        where = f"{asked.model} at commit {asked.revision}"
        raise NotPreparedError("is not in the hub cache", where=where, hint=hint) from None


def prepare_source(source: ModelSource, on_progress: OnProgress) -> None:
    """Bring a model to where `locate_source` finds it; `on_progress` gets what is done, the bytes done and their total.

    Raises CheckpointError where that fails. Does nothing, and asks nobody, where everything is there.
    """
    if source.revision and not is_fetched(snapshot_dir(source.model, source.revision), source.sha256):
        what = f"download {source.model}"
        on_progress(what, 0, 0)
        fetch_snapshot(source.model, source.revision, source.sha256, lambda done, total: on_progress(what, done, total))
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
