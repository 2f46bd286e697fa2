# SPDX-License-Identifier: Apache-2.0
"""What a hub model is, without its weights: its newest commit, its documents, the headers of its tensors.

A preview is a directory that reads as the whole checkpoint does, over files with holes: of the tensors only small
tables of integers are there, which checks compare. Nothing may be computed from it.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from trtspec.checkpoint.hub import DESCRIPTIONS, explained, hub_token
from trtspec.checkpoint.safetensors import MAX_HEADER_BYTES, MAX_HEADER_VALUES, TensorInfo, read_header
from trtspec.checkpoint.source import INDEX, SHARD, read_weight_map, snapshot_dir
from trtspec.checkpoint.untrusted import parse_object
from trtspec.errors import CheckpointError
from trtspec.files import in_threads
from trtspec.paths import hub_cache_dir
from trtspec.recipe.schema import COMMIT

TIMEOUT_S = 20.0  # for each answer of the hub
TRY_AGAIN = "try again"
FIRST_BYTES = 100_000  # most headers are shorter
TABLES, MAX_TABLE_BYTES = ("I64", "BOOL"), 16 << 20
PICKLES = (".bin", ".pt", ".pth")
PINNED = "build from pickles by hand: allow_pickle and sha256 (docs/checkpoints.md)"

Range = Callable[[int, int], bytes]


class Commit(NamedTuple):
    """A commit of a hub model, and why that one."""

    revision: str
    why: str


def newest_commit(model: str) -> Commit:
    """Return the newest commit of a hub model, offline the one that the hub cache has; CheckpointError for none."""
    with explained(model, TRY_AGAIN):
        from huggingface_hub import HfApi, constants

        if constants.HF_HUB_OFFLINE and (revision := _cached_commit(model)):
            return Commit(revision, "the newest commit in the hub cache when this was written")
        found = HfApi().model_info(model, timeout=TIMEOUT_S, token=hub_token() or False)
        if not re.fullmatch(COMMIT, found.sha or ""):
            raise CheckpointError("the hub tells no commit of it", where=model, hint="check HF_ENDPOINT")
        return Commit(str(found.sha), "the newest commit when this was written")


def _cached_commit(model: str) -> str | None:
    """Return the commit that was last put into the hub cache."""
    snapshots = snapshot_dir(model, "none").parent
    found = [path for path in snapshots.glob("*") if re.fullmatch(COMMIT, path.name)]
    return max(found, key=lambda path: path.stat().st_mtime).name if found else None


def make_preview(model: str, revision: str, out: Path) -> None:
    """Fill the directory `out` with what a hub model is at a commit; CheckpointError where that cannot be had."""
    where = f"{model} at commit {revision}"
    with explained(where, TRY_AGAIN):
        names = _names(model, revision)
        described = [name for name in DESCRIPTIONS if name in names]
        in_threads(lambda name: shutil.copyfile(_fetch(model, revision, name), out / name), described)
        shards = _shards(names, out, where)
        in_threads(lambda name: _make_shard(out / name, partial(_ask, model, revision, name)), shards)


def _names(model: str, revision: str) -> list[str]:
    """Return the files of a commit."""
    from huggingface_hub import HfApi

    found = HfApi().model_info(model, revision=revision, timeout=TIMEOUT_S, token=hub_token() or False)
    return [file.rfilename for file in found.siblings or ()]


def _fetch(model: str, revision: str, name: str) -> str:
    """Return where a file lies in the hub cache, downloading it where it is not there; the client's waits are bounded.

    Its download of whole snapshots waits for a list of files without a bound.
    """
    from huggingface_hub import hf_hub_download

    _client().disable_progress_bars()
    return str(hf_hub_download(model, name, revision=revision, cache_dir=hub_cache_dir(), token=hub_token() or False))


def _shards(names: list[str], root: Path, where: str) -> list[str]:
    """Return the names of the weights: those of the index, or where there is none all that lie on top."""
    is_indexed = (root / INDEX).is_file()
    weights = sorted(set(read_weight_map(root / INDEX).values())) if is_indexed else names
    found = [name for name in weights if SHARD.fullmatch(name)]
    if not found:
        pickled = next((name for name in names if name.endswith(PICKLES)), None)
        message = f"has no *.safetensors; {pickled} is a pickle, which is not opened" if pickled else "has no weights"
        raise CheckpointError(message, where=where, hint=PINNED if pickled else None)
    return found


def _ask(model: str, revision: str, name: str, first: int, last: int) -> bytes:
    """Return bytes of a file on the hub, fewer where it ends before."""
    from huggingface_hub import hf_hub_url

    client = _client()
    headers = {**client.build_hf_headers(token=hub_token() or False), "Range": f"bytes={first}-{last}"}
    url = hf_hub_url(model, name, revision=revision)
    answer = client.get_session().get(url, headers=headers, timeout=TIMEOUT_S)
    client.hf_raise_for_status(answer)
    if answer.status_code != 206:
        raise CheckpointError(
            "the hub gives no parts of files", where=f"{model}/{name}", hint="trtspec build downloads all of them"
        )
    return bytes(answer.content)


def _client() -> Any:
    """Return the client's tools, whose exports are not typed as such."""
    from huggingface_hub import utils

    return utils


def _make_shard(path: Path, read: Range) -> None:
    """Write a file of the same header and length."""
    head = read(0, FIRST_BYTES - 1)
    end = 8 + int.from_bytes(head[:8], "little")
    if end > MAX_HEADER_BYTES:
        raise CheckpointError("not a safetensors file", where=str(path))
    if end > len(head):
        head += read(len(head), end - 1)
    path.write_bytes(head[:end])
    os.truncate(path, end + _data_bytes(path, head[8:end]))
    for tensor in read_header(path).values():
        if tensor.dtype in TABLES and 0 < tensor.nbytes <= MAX_TABLE_BYTES:
            _fill(path, tensor, read)


def _data_bytes(path: Path, header: bytes) -> int:
    """Return where the last tensor ends; whether all of it adds up is `read_header`'s to say."""
    try:
        entries = parse_object(header, MAX_HEADER_VALUES).items()
        return max((int(entry["data_offsets"][1]) for name, entry in entries if name != "__metadata__"), default=0)
    except (ValueError, TypeError, KeyError, IndexError):
        raise CheckpointError("not a safetensors file: its header cannot be read", where=str(path)) from None


def _fill(path: Path, tensor: TensorInfo, read: Range) -> None:
    with path.open("r+b") as file:
        file.seek(tensor.offset)
        file.write(read(tensor.offset, tensor.offset + tensor.nbytes - 1))
