# SPDX-License-Identifier: Apache-2.0
"""Hugging Face Hub access: download one commit of a model; request its newest commit, file list and byte ranges.

Complete files are kept, so an interrupted download continues with the missing ones. Failures are raised with a message
and a hint. The token is HF_TOKEN from the environment or none. A login stored on disk is not used, because a build
should only have the access that its environment grants.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any, NamedTuple, cast
from urllib.parse import quote, urlsplit

from trtspec.checkpoints.source import (
    INDEX,
    PICKLE_INDEX,
    TOKENIZER_FILES,
    NotPreparedError,
    read_weight_map,
    snapshot_dir,
)
from trtspec.core.errors import CheckpointError
from trtspec.core.installation import __version__
from trtspec.core.paths import hub_cache_dir
from trtspec.recipe.schema import COMMIT

log = logging.getLogger(__name__)

DESCRIPTIONS = ("config.json", "hf_quant_config.json", INDEX, *TOKENIZER_FILES)
TOKEN = re.compile(r"[A-Za-z0-9._~+/=-]+")  # the token syntax of an Authorization: Bearer header
NO_MODEL = "the model does not exist on the hub, or it is private"
READ_ACCESS_HINT = "set HF_TOKEN to a token with read access"
BUILD_AGAIN, TRY_AGAIN = "build again", "try again"
COMPLETE_FILES_HINT = "complete files are kept"

OnBytes = Callable[[int, int], None]


class HubError(NotPreparedError):
    """Raised if the hub is unreachable or refuses a request."""


def is_fetched(root: Path, pickles: Collection[str]) -> bool:
    """Return whether a snapshot has config.json and its weight files.

    The weight files are `pickles` or the files in the index. Without an index, one *.safetensors file suffices.
    """
    weights = _weights(root, pickles)
    whole = all((root / name).is_file() for name in weights) if weights else any(root.glob("*.safetensors"))
    return whole and (root / "config.json").is_file()


def fetch_snapshot(model: str, revision: str, pickles: Collection[str], on_bytes: OnBytes) -> None:
    """Download the files that a build needs from one commit of a hub model.

    The weights are `pickles` if given, else the *.safetensors files of the index. `on_bytes` receives the downloaded
    and the total bytes; the total grows as downloads start. Raises CheckpointError if the hub is unreachable, refuses
    or lacks a file, or if a file cannot be stored.
    """
    root, bar = snapshot_dir(model, revision), _bar_class(on_bytes)
    with explain_hub_errors(f"{model} at commit {revision}"):
        _download(model, revision, [*DESCRIPTIONS, *([PICKLE_INDEX] if pickles else [])], bar)
        weights = _weights(root, pickles) or ["*.safetensors"]
        if not is_fetched(root, pickles):
            _check_disk_space(model, revision, weights)
        _download(model, revision, weights, bar)
    if not is_fetched(root, pickles):
        message, hint = _incomplete(root, pickles)
        raise CheckpointError(message, where=f"{model} at commit {revision}", hint=hint)


def _download(model: str, revision: str, names: Collection[str], bar: type[Any]) -> None:
    from huggingface_hub import constants, snapshot_download

    token = hub_token()
    host, as_whom = urlsplit(constants.ENDPOINT).hostname, "with HF_TOKEN" if token else "without a token"
    log.info("request from %s %s: %s at %s: %s", host, as_whom, model, revision, " ".join(names))
    snapshot_download(
        model,
        revision=revision,
        cache_dir=hub_cache_dir(),
        token=token or False,
        allow_patterns=list(names),
        ignore_patterns=["*/*"],  # without it the patterns would also match in folders
        tqdm_class=bar,
    )


def _check_disk_space(model: str, revision: str, names: Collection[str]) -> None:
    """Raise CheckpointError if the hub cache lacks space for the weights; do nothing offline."""
    from huggingface_hub import HfApi, constants

    from trtspec.store.plan import disk_need  # imports the store, which a check does not need

    if constants.HF_HUB_OFFLINE:
        return
    root, cache = snapshot_dir(model, revision), hub_cache_dir()
    listed = HfApi().list_repo_tree(model, revision=revision, token=hub_token() or False)
    sizes = {each.path: getattr(each, "size", 0) for each in listed}  # folders lack a size
    absent = [path for path in sizes if not (root / path).exists() and any(fnmatch(path, name) for name in names)]
    begun = sum(path.stat().st_size for path in root.parent.parent.glob("blobs/*.incomplete"))
    need = disk_need("hub cache", cache, max(0, sum(sizes[path] for path in absent) - begun))
    if not need.is_met:
        raise CheckpointError(need.message, hint="free space there, or point HF_HUB_CACHE at another disk")


@contextmanager
def explain_hub_errors(where: str, again: str = BUILD_AGAIN, place: Path | None = None) -> Iterator[None]:
    """Convert the hub client's errors in the block to HubError about `where`, with a message and a hint.

    `again` is the action to repeat after the cause is fixed. `place` is the download directory, by default the hub
    cache.
    """
    try:
        yield
    except (CheckpointError, ModuleNotFoundError):
        raise
    except Exception as error:  # the client also raises errors of its HTTP library, which differs between versions
        message, hint = _explain(error, again, place or hub_cache_dir())
        raise HubError(message, where=where, hint=hint) from error


def _weights(root: Path, pickles: Collection[str]) -> list[str]:
    """Return the names of the weight files: `pickles`, or the files in the index if it exists."""
    if pickles:
        return sorted(pickles)
    index = root / INDEX
    return sorted(set(read_weight_map(index).values())) if index.is_file() else []


def hub_token() -> str | None:
    """Return HF_TOKEN, or None if it is not set; raise CheckpointError if it is not a valid HTTP header value."""
    token = os.environ.get("HF_TOKEN", "").strip()
    if token and not TOKEN.fullmatch(token):
        raise CheckpointError(
            "HF_TOKEN contains characters that are not valid in a token", hint=f"{READ_ACCESS_HINT}, or unset it"
        )
    return token or None


def _incomplete(root: Path, pickles: Collection[str]) -> tuple[str, str]:
    """Return (message, hint) for a snapshot that is incomplete although the download did not fail."""
    from huggingface_hub import constants

    absent = [name for name in ("config.json", *_weights(root, pickles)) if not (root / name).is_file()]
    message = f"{absent[0] if absent else '*.safetensors'} is missing"
    if constants.HF_HUB_OFFLINE:
        return f"{message} from the hub cache, and HF_HUB_OFFLINE is set", "unset HF_HUB_OFFLINE and build again"
    if absent:
        return message, "check the model's name, the commit and the names under sha256"
    digests = "allow_pickle: true and sha256: {pytorch_model.bin: <64 hex digits from the file's page on the hub>}"
    return message, f"if the weights are pickles, allow them in the recipe: {digests}"


def _explain(error: Exception, again: str, place: Path) -> tuple[str, str]:
    """Return (message, hint) for a failed download.

    The client's message is not quoted: a URL in it may contain a signature that grants access to a private file.
    """
    from huggingface_hub import constants, errors

    then = f"then {again}: {COMPLETE_FILES_HINT}"
    if isinstance(error, (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled)):
        if constants.HF_HUB_OFFLINE:
            return "not in the hub cache, and HF_HUB_OFFLINE is set", f"unset HF_HUB_OFFLINE and {again}"
        error = error.__cause__ if isinstance(error.__cause__, Exception) else error
    explanations = {
        errors.GatedRepoError: (
            "access to the model is gated",
            f"request access on the model's page, then {READ_ACCESS_HINT}",
        ),
        errors.RevisionNotFoundError: ("the model has no such commit", "copy one from the hub's list of commits"),
        errors.RepositoryNotFoundError: (NO_MODEL, f"check the name, or {READ_ACCESS_HINT}"),
        errors.HFValidationError: ("not a valid name of a hub model", "a hub id is owner/name"),
    }
    for kind, explanation in explanations.items():  # GatedRepoError is a subclass of RepositoryNotFoundError
        if isinstance(error, kind):
            return explanation
    if isinstance(error, errors.HfHubHTTPError):
        status = error.response.status_code
        hint = f"{READ_ACCESS_HINT}, or unset it" if status in (401, 403) else then
        return f"the hub returned HTTP status {status}", hint
    if isinstance(error, OSError) and error.errno and not isinstance(error, (ConnectionError, TimeoutError)):
        return f"cannot be stored: {os.strerror(error.errno)}", f"free space in {place} or make it writable; {then}"
    endpoint = urlsplit(constants.ENDPOINT).hostname  # omits a password in the URL
    hint = f"check the network, the proxy and HF_ENDPOINT; {then}"
    return f"the download from {endpoint} failed: {type(error).__name__}", hint


def _bar_class(on_bytes: OnBytes) -> type[Any]:
    """Return a tqdm class for the hub client that calls `on_bytes` instead of drawing a bar."""
    import threading
    from io import StringIO

    import huggingface_hub  # noqa: F401 - provides tqdm; if missing, the error names the package to install
    from tqdm import tqdm

    class Bar(tqdm):  # type: ignore[misc]  # tqdm has no types
        monitor_interval = 0
        # the client creates several byte counters; the last one counts bytes on disk
        latest: Bar | None = None

        def __init__(self, *arguments: Any, **options: Any) -> None:
            if options.get("unit") == "B":
                Bar.latest = self
            super().__init__(*arguments, **{**options, "file": StringIO(), "disable": False, "miniters": 1})

        def display(self, *_: Any, **__: Any) -> None:
            if self is Bar.latest and self.total:
                on_bytes(int(self.n), int(self.total))

    Bar.set_lock(threading.RLock())  # tqdm's default lock would start a process
    return Bar


CHECK_ENDPOINT = "check HF_ENDPOINT"
TIMEOUT_S = 20.0  # for each request


class HubFile(NamedTuple):
    """Size and content digest of a file of a commit; equal files have equal digests."""

    nbytes: int
    digest: str


def newest_commit(model: str) -> str:
    """Return the newest commit of a hub model; raise CheckpointError if the request fails."""
    with explain_hub_errors(model, TRY_AGAIN):
        commit = str(_info(model).get("sha"))
        if not re.fullmatch(COMMIT, commit):
            raise CheckpointError("the hub returned no commit", where=model, hint=CHECK_ENDPOINT)
        return commit


@dataclass(frozen=True)
class HubModel:
    """One commit of a hub model; methods raise the hub client's errors, which `explain_hub_errors` converts."""

    model: str
    revision: str

    def __str__(self) -> str:
        return f"{self.model} at commit {self.revision}"

    def files(self) -> dict[str, HubFile]:
        """Return the files in the top-level folder of the commit, by name."""
        siblings = _info(f"{self.model}/revision/{self.revision}?blobs=true").get("siblings")
        return {
            str(each["rfilename"]): HubFile(int(each.get("size") or 0), str(each.get("blobId") or ""))
            for each in siblings or ()
            if "/" not in each["rfilename"]
        }

    def read(self, name: str, first: int, count: int) -> bytes:
        """Return `count` bytes of a file from `first` on, fewer at its end; raise HubError without range support."""
        part = {"Range": f"bytes={first}-{first + count - 1}", "Accept-Encoding": "identity"}
        answer = _get(f"{self.model}/resolve/{self.revision}/{quote(name)}", part)
        data = bytes(answer.content)
        if answer.status_code != 206 and (first or len(data) > count):
            hint = "trtspec build downloads whole files"
            raise HubError("the hub does not support range requests", where=f"{self.model}/{name}", hint=hint)
        return data[:count]


def _info(path: str) -> dict[str, Any]:
    """Return the hub's metadata of a model; raise CheckpointError if the response is not a JSON object."""
    answer = _get(f"api/models/{path}", {})
    try:
        found = answer.json()
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise CheckpointError("the response does not come from a hub", where=str(answer.url), hint=CHECK_ENDPOINT)
    return found


def _get(path: str, headers: dict[str, str]) -> Any:
    """Send a GET request to the hub and return the response.

    `HfApi` is not used, because importing it takes longer than the request.
    """
    from huggingface_hub import constants, utils

    client = cast(Any, utils)  # its names are not exported
    answer = client.get_session().get(f"{constants.ENDPOINT}/{path}", headers=_headers() | headers, timeout=TIMEOUT_S)
    client.hf_raise_for_status(answer)
    return answer


def _headers() -> dict[str, str]:
    """Return the user agent and the token; the client's own function takes 0.1 s because it detects all frameworks."""
    token = hub_token()
    return {"User-Agent": f"trtspec/{__version__}"} | ({"Authorization": f"Bearer {token}"} if token else {})
