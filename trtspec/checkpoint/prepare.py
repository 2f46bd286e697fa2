# SPDX-License-Identifier: Apache-2.0
"""From what a recipe says of a model to the directory it is read from: a directory, a hub id, or pickles in either.

Finding it is cheap and changes nothing; preparing it may download and unpickle, and then it is found.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from trtspec.checkpoint.hub import fetch_snapshot, is_fetched
from trtspec.checkpoint.pickles import unpickle, unpickled_dir
from trtspec.checkpoint.source import NotPreparedError, locate_model, snapshot_dir
from trtspec.recipe.schema import ModelSource

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
