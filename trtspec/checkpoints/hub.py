# SPDX-License-Identifier: Apache-2.0
"""Brings one commit of a hub model into the hub cache, with huggingface_hub; opens no weight.

Owns which files are fetched and what the user can do where that fails. Files that arrived whole stay, so a download
that was interrupted goes on with the ones that did not. The token is the environment's HF_TOKEN or none: a login that
is stored on disk is not used, because a build should read what its environment lets it read.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from trtspec.checkpoints.source import (
    INDEX,
    PICKLE_INDEX,
    TOKENIZER_FILES,
    NotPreparedError,
    read_weight_map,
    snapshot_dir,
)
from trtspec.core.errors import CheckpointError
from trtspec.core.paths import hub_cache_dir

log = logging.getLogger(__name__)

DESCRIPTIONS = ("config.json", "hf_quant_config.json", INDEX, *TOKENIZER_FILES)
TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")  # what may stand after "Bearer" in a header
NO_MODEL = "the hub has no such model, or it is private"
MAY_READ = "set HF_TOKEN to a token that may read it"
BUILD_AGAIN, TRY_AGAIN = "build again", "try again"
KEPT = "files that arrived whole are kept"

OnBytes = Callable[[int, int], None]


class HubError(NotPreparedError):
    """The hub cannot be reached, or does not hand out what is asked for."""


def is_fetched(root: Path, pickles: Collection[str]) -> bool:
    """Return whether a snapshot holds its config and the weights that are known to belong to it."""
    weights = _weights(root, pickles)
    whole = all((root / name).is_file() for name in weights) if weights else any(root.glob("*.safetensors"))
    return whole and (root / "config.json").is_file()


def fetch_snapshot(model: str, revision: str, pickles: Collection[str], on_bytes: OnBytes) -> None:
    """Download what a build reads of a hub model at a commit.

    The weights are `pickles` where there are any, else the *.safetensors that the index names. `on_bytes` gets the
    bytes that are done and their total, which grows while files begin. Raises CheckpointError where the hub cannot be
    reached, does not hand the files out, has none, or where they cannot be stored.
    """
    root, bar = snapshot_dir(model, revision), _bar_class(on_bytes)
    with explained(f"{model} at commit {revision}"):
        _download(model, revision, [*DESCRIPTIONS, *([PICKLE_INDEX] if pickles else [])], bar)
        weights = _weights(root, pickles) or ["*.safetensors"]
        if not is_fetched(root, pickles):
            _check_room(model, revision, weights)
        _download(model, revision, weights, bar)
    if not is_fetched(root, pickles):
        message, hint = _incomplete(root, pickles)
        raise CheckpointError(message, where=f"{model} at commit {revision}", hint=hint)


def _download(model: str, revision: str, names: Collection[str], bar: type[Any]) -> None:
    from huggingface_hub import constants, snapshot_download

    token = hub_token()
    host, as_whom = urlsplit(constants.ENDPOINT).hostname, "with HF_TOKEN" if token else "without a token"
    log.info("ask %s %s for %s at %s: %s", host, as_whom, model, revision, " ".join(names))
    snapshot_download(
        model,
        revision=revision,
        cache_dir=hub_cache_dir(),
        token=token or False,
        allow_patterns=list(names),
        ignore_patterns=["*/*"],  # the patterns alone would match in folders too
        tqdm_class=bar,
    )


def _check_room(model: str, revision: str, names: Collection[str]) -> None:
    """Refuse a download of weights that the hub cache has no room for; offline nothing is downloaded."""
    from huggingface_hub import HfApi, constants

    from trtspec.store.disk_space import disk_need  # knows the store, which a check does without

    if constants.HF_HUB_OFFLINE:
        return
    root, cache = snapshot_dir(model, revision), hub_cache_dir()
    listed = HfApi().list_repo_tree(model, revision=revision, token=hub_token() or False)
    sizes = {each.path: getattr(each, "size", 0) for each in listed}  # a folder has none
    absent = [path for path in sizes if not (root / path).exists() and any(fnmatch(path, name) for name in names)]
    begun = sum(path.stat().st_size for path in root.parent.parent.glob("blobs/*.incomplete"))
    need = disk_need("hub cache", cache, max(0, sum(sizes[path] for path in absent) - begun))
    if not need.is_met:
        raise CheckpointError(need.message, hint="make room there, or point HF_HUB_CACHE at another disk")


@contextmanager
def explained(where: str, again: str = BUILD_AGAIN, place: Path | None = None) -> Iterator[None]:
    """Turn the client's errors into a CheckpointError about `where`; `again` is what to do once the cause is gone.

    Files are stored at `place`, by default in the hub cache.
    """
    try:
        yield
    except (CheckpointError, ModuleNotFoundError):
        raise
    except Exception as error:  # the client lets out errors of its HTTP library, which changed with its versions
        message, hint = _explain(error, again, place or hub_cache_dir())
        raise HubError(message, where=where, hint=hint) from error


def _weights(root: Path, pickles: Collection[str]) -> list[str]:
    """Return the names of the weight files, as far as they are known before they are there."""
    if pickles:
        return sorted(pickles)
    index = root / INDEX
    return sorted(set(read_weight_map(index).values())) if index.is_file() else []


def hub_token() -> str | None:
    """Return HF_TOKEN, None where it is not set; raises CheckpointError for what no header can hold."""
    token = os.environ.get("HF_TOKEN", "").strip()
    if token and not TOKEN.fullmatch(token):
        raise CheckpointError("HF_TOKEN holds characters that no token has", hint=f"{MAY_READ}, or unset it")
    return token or None


def _incomplete(root: Path, pickles: Collection[str]) -> tuple[str, str]:
    """Return what is wrong with a snapshot after a download without an error, and what to do about it."""
    from huggingface_hub import constants

    absent = [name for name in ("config.json", *_weights(root, pickles)) if not (root / name).is_file()]
    message = f"there is no {absent[0] if absent else '*.safetensors'}"
    if constants.HF_HUB_OFFLINE:
        return f"{message} in the hub cache, and HF_HUB_OFFLINE is set", "unset HF_HUB_OFFLINE and build again"
    if absent:
        return message, "check the model's name, the commit and the names under sha256"
    digests = "allow_pickle: true and sha256: {pytorch_model.bin: <64 hex digits, on the hub's page of the file>}"
    return message, f"where the weights are pickles, allow them in the recipe: {digests}"


def _explain(error: Exception, again: str, place: Path) -> tuple[str, str]:
    """Return what went wrong with a download, and what to do about it.

    No text of the client is quoted: an address in it may carry a signature that opens a private file.
    """
    from huggingface_hub import constants, errors

    then = f"then {again}: {KEPT}"
    if isinstance(error, (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled)):
        if constants.HF_HUB_OFFLINE:
            return "it is not in the hub cache, and HF_HUB_OFFLINE is set", f"unset HF_HUB_OFFLINE and {again}"
        error = error.__cause__ if isinstance(error.__cause__, Exception) else error
    said = {
        errors.GatedRepoError: ("its owner wants to be asked for access", f"ask on the model's page, then {MAY_READ}"),
        errors.RevisionNotFoundError: ("the model has no such commit", "take it from the hub's list of commits"),
        errors.RepositoryNotFoundError: (NO_MODEL, f"check the name, or {MAY_READ}"),
        errors.HFValidationError: ("this cannot be the name of a hub model", "a hub id is owner/name"),
    }
    for kind, explanation in said.items():  # the first is a kind of the third
        if isinstance(error, kind):
            return explanation
    if isinstance(error, errors.HfHubHTTPError):
        status = error.response.status_code
        hint = f"{MAY_READ}, or unset it" if status in (401, 403) else then
        return f"the hub answered with HTTP status {status}", hint
    if isinstance(error, OSError) and error.errno and not isinstance(error, (ConnectionError, TimeoutError)):
        return f"cannot be stored: {os.strerror(error.errno)}", f"give {place} room or access; {then}"
    endpoint = urlsplit(constants.ENDPOINT).hostname  # without the password that an address may hold
    hint = f"check the network, the proxy and HF_ENDPOINT; {then}"
    return f"the download from {endpoint} failed: {type(error).__name__}", hint


def _bar_class(on_bytes: OnBytes) -> type[Any]:
    """Return what the client takes for a progress bar, and what calls `on_bytes` instead of drawing."""
    import threading
    from io import StringIO

    import huggingface_hub  # noqa: F401 - brings tqdm; where it is missing, it is what has to be installed
    from tqdm import tqdm

    class Bar(tqdm):  # type: ignore[misc]  # tqdm has no types
        monitor_interval = 0
        # of several bars of bytes the client makes the one for what is on the disk last
        latest: Bar | None = None

        def __init__(self, *arguments: Any, **options: Any) -> None:
            if options.get("unit") == "B":
                Bar.latest = self
            super().__init__(*arguments, **{**options, "file": StringIO(), "disable": False, "miniters": 1})

        def display(self, *_: Any, **__: Any) -> None:
            if self is Bar.latest and self.total:
                on_bytes(int(self.n), int(self.total))

    Bar.set_lock(threading.RLock())  # tqdm's own lock would start a process
    return Bar
