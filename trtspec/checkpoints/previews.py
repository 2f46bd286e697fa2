# SPDX-License-Identifier: Apache-2.0
"""Previews of hub models: configs, tokenizers and tensor headers without weights, cached by model id and commit.

    CACHE/previews/OWNER/NAME/COMMIT/
        preview.json      the hub's file list, and the files that are partial here; written last
        config.json ...   complete small files; of large files only the length
        *.safetensors     headers and tables of ids, which checks compare; the rest are holes

A preview has the layout of the checkpoint, so every reader works unchanged. Its weight files are marked `absent`, and
nothing may be computed from them. The content of a commit never changes, so no lock is needed: concurrent writers write
the same bytes. For a large tokenizer only the length is fetched, until the tokenizer has to be compared with one that
has a different digest.
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from trtspec.checkpoints.hub import DESCRIPTIONS, TRY_AGAIN, HubFile, HubModel, explain_hub_errors
from trtspec.checkpoints.safetensors import MAX_HEADER_BYTES, TensorInfo, read_header
from trtspec.checkpoints.source import (
    INDEX,
    MAX_INDEX_BYTES,
    SHARD,
    TOKENIZER_FILES,
    Source,
    load_source,
    read_json,
    read_weight_map,
)
from trtspec.checkpoints.tokenizer import check_tokenizers
from trtspec.core.errors import CheckpointError
from trtspec.core.files import UNREAD, map_in_threads, replace_file
from trtspec.core.paths import cache_dir
from trtspec.recipe.schema import COMMIT

MARKER, FORMAT = "preview.json", "trtspec.preview/1"
MAX_PREVIEWS = 100  # previews, including incomplete ones; the least recently used are deleted


def previews_dir() -> Path:
    return cache_dir() / "previews"


def preview_dir(model: str, revision: str) -> Path:
    """Return the directory of a commit's preview, which need not exist."""
    return previews_dir() / model / revision


@dataclass(frozen=True)
class Preview:
    """A complete preview: `files` are the commit's files by name, `parts` the names of files with missing content."""

    model: str
    revision: str
    files: dict[str, HubFile]
    parts: tuple[str, ...]

    @property
    def root(self) -> Path:
        return preview_dir(self.model, self.revision)

    def source(self) -> Source:
        """Return the model as a source for checks; raise CheckpointError if its files are inconsistent."""
        os.utime(self.root)
        source = load_source(self.root)
        return replace(source, absent={name: (UNREAD, self.files[name].nbytes, 0) for name in self.parts})

    def publish(self) -> None:
        document = json.dumps({"format": FORMAT, **asdict(self)})
        write_preview_file(self.root / MARKER, document.encode())


def find_preview(root: Path) -> Preview | None:
    """Return the complete preview in a directory, or None if it is missing or truncated."""
    try:
        document = read_json(root / MARKER, MAX_INDEX_BYTES)
        if document.pop("format") != FORMAT:
            return None
        files = {name: HubFile(*each) for name, each in document["files"].items()}
        found = Preview(document["model"], document["revision"], files, tuple(document["parts"]))
        is_complete = all((root / name).stat().st_size == files[name].nbytes for name in found.parts)
    except (OSError, CheckpointError, KeyError, TypeError):
        return None
    return found if is_complete else None


def write_preview_file(path: Path, data: bytes, nbytes: int | None = None) -> None:
    """Write `data` to a file atomically and extend the file to `nbytes` with a hole."""
    replace_file(path, data, nbytes=nbytes or 0, durable=nbytes is None)


def create_preview_dir(model: str, revision: str) -> Path:
    """Create and return the directory of a preview, which only its owner can read."""
    previews_dir().mkdir(mode=0o700, parents=True, exist_ok=True)
    root = preview_dir(model, revision)
    root.mkdir(parents=True, exist_ok=True)
    return root


def prune_previews() -> None:
    """Delete the least recently used previews beyond `MAX_PREVIEWS`."""
    folders = (path for depth in ("*/*", "*/*/*") for path in previews_dir().glob(depth))
    found = [path for path in folders if re.fullmatch(COMMIT, path.name)]
    for root in sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)[MAX_PREVIEWS:]:
        (root / MARKER).unlink(missing_ok=True)  # without its marker it does not count as a preview
        shutil.rmtree(root, ignore_errors=True)


def with_model_ids(text: str) -> str:
    """Return a text in which paths of preview directories are replaced by model ids."""
    return re.sub(rf"{re.escape(str(previews_dir()))}/((?:[^/\s]+/)?[^/\s]+)/{COMMIT.strip('^$')}", r"\1", text)


THREADS = 16  # concurrent requests, which are almost always idle
SMALL_BYTES = 1 << 16  # tokenizer files up to this size are downloaded
# Estimated header size: a constant, plus this and the name's length for each tensor. Most headers need one request.
HEADER_BYTES, ENTRY_BYTES, UNKNOWN_HEADER_BYTES = 512, 110, 60_000
TABLES, TABLE_BYTES = ("I64", "BOOL"), range(1 << 10, 16 << 20)  # tables of ids in draft heads
PICKLES = (".bin", ".pt", ".pth")
PINNED = "to build from pickles, set allow_pickle and sha256 (docs/checkpoints.md)"


def make_preview(model: str, revision: str) -> Source:
    """Return the preview of a hub model at a commit, downloading only what is not cached.

    Raises CheckpointError if the download fails or the files are inconsistent.
    """
    hub = HubModel(model, revision)
    found = find_preview(preview_dir(model, revision))
    if found is None:
        with explain_hub_errors(str(hub), TRY_AGAIN, previews_dir()):
            found = _make(hub)
        prune_previews()
    return found.source()


def compare_tokenizers(target: Source, draft: Source) -> None:
    """Raise TrtspecError if two tokenizers differ (see `check_tokenizers`); download them only if their digests do."""
    digests = {_digest(source, "tokenizer.json") for source in (target, draft)}
    if len(digests) > 1 or "" in digests:
        for source in (target, draft):
            fetch_tokenizer(source)
        check_tokenizers(target.root, draft.root)


def _digest(source: Source, name: str) -> str:
    """Return the hub's digest of a file, or "" if the source is not a preview or lacks the file."""
    found = find_preview(source.root) if source.absent else None
    return found.files[name].digest if found and name in found.files else ""


def fetch_tokenizer(source: Source) -> None:
    """Download tokenizer.json if the preview has only its length; raise HubError if the download fails."""
    name = "tokenizer.json"
    found = find_preview(source.root) if name in source.absent else None
    if found is None or name not in found.parts:
        return
    hub = HubModel(found.model, found.revision)
    with explain_hub_errors(str(hub), TRY_AGAIN, previews_dir()):
        write_preview_file(source.root / name, hub.read(name, 0, found.files[name].nbytes))
        replace(found, parts=tuple(part for part in found.parts if part != name)).publish()


def _make(hub: HubModel) -> Preview:
    """Download the missing files of a preview, then write the marker that makes it complete."""
    root, files = create_preview_dir(hub.model, hub.revision), hub.files()
    if "config.json" not in files:
        raise CheckpointError("no config.json", where=hub.model, hint="a checkpoint is config.json and *.safetensors")
    described = [name for name in DESCRIPTIONS if name in files]
    large = [name for name in described if name in TOKENIZER_FILES and files[name].nbytes > SMALL_BYTES]
    for name in large:
        if not _is_there(root, name, files):
            write_preview_file(root / name, b"", files[name].nbytes)
    map_in_threads(partial(_fetch, hub, root, files), [name for name in described if name not in large], THREADS)
    shards = _shards(root, files, hub.model)
    _make_shards(hub, root, files, shards)
    found = Preview(hub.model, hub.revision, files, (*large, *shards))
    found.publish()
    return found


def _make_shards(hub: HubModel, root: Path, files: Mapping[str, HubFile], expected: Mapping[str, int]) -> None:
    """Create the missing weight files, each in a temporary directory until it is complete."""
    with TemporaryDirectory(dir=root) as folder:

        def make(name: str) -> None:
            _make_shard(hub, Path(folder, name), files[name].nbytes, expected[name])
            Path(folder, name).replace(root / name)

        map_in_threads(make, [name for name in expected if not _is_there(root, name, files)], THREADS)


def _is_there(root: Path, name: str, files: Mapping[str, HubFile]) -> bool:
    return (root / name).is_file() and (root / name).stat().st_size == files[name].nbytes


def _fetch(hub: HubModel, root: Path, files: Mapping[str, HubFile], name: str) -> None:
    """Download a small file unless it is cached; raise CheckpointError if it exceeds MAX_INDEX_BYTES."""
    nbytes = files[name].nbytes
    if nbytes > MAX_INDEX_BYTES:
        raise CheckpointError(
            f"{name} is larger than {MAX_INDEX_BYTES:,} bytes", where=hub.model, hint="name another model"
        )
    if not _is_there(root, name, files):
        write_preview_file(root / name, hub.read(name, 0, nbytes) if nbytes else b"")


def _shards(root: Path, files: Mapping[str, HubFile], where: str) -> dict[str, int]:
    """Return the estimated header bytes of each weight file in the index or, without an index, in the commit."""
    expected = dict.fromkeys(files, UNKNOWN_HEADER_BYTES)
    if (root / INDEX).is_file():
        expected = {}
        for tensor, name in read_weight_map(root / INDEX).items():
            expected[name] = expected.get(name, HEADER_BYTES) + len(tensor) + ENTRY_BYTES
    found = {name: expected[name] for name in sorted(expected) if SHARD.fullmatch(name)}
    if missing := [name for name in found if name not in files]:
        raise CheckpointError(
            f"the index names {missing[0]}, which is missing", where=where, hint="name another commit"
        )
    if not found:
        pickled = next((name for name in files if name.endswith(PICKLES)), None)
        message = (
            f"lacks *.safetensors; {pickled} is a pickle, and pickles are not opened" if pickled else "lacks weights"
        )
        raise CheckpointError(message, where=where, hint=PINNED if pickled else None)
    return found


def _make_shard(hub: HubModel, path: Path, nbytes: int, expected: int) -> None:
    """Write a sparse file with the original's length, header and tables of ids."""
    head = hub.read(path.name, 0, min(expected, nbytes))
    end = 8 + int.from_bytes(head[:8], "little")
    if end > min(MAX_HEADER_BYTES, nbytes):
        raise CheckpointError("not a safetensors file", where=f"{hub.model}/{path.name}", hint="name another commit")
    if end > len(head):
        head += hub.read(path.name, len(head), end - len(head))
    path.write_bytes(head[:end])
    os.truncate(path, nbytes)
    try:
        for tensor in read_header(path).values():
            if tensor.dtype in TABLES and tensor.nbytes in TABLE_BYTES:
                _fill(path, tensor, hub.read(path.name, tensor.offset, tensor.nbytes))
    except CheckpointError as error:
        raise CheckpointError(error.message, where=f"{hub.model}/{path.name}", hint=error.hint) from error


def _fill(path: Path, tensor: TensorInfo, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(tensor.offset)
        file.write(data)
