# SPDX-License-Identifier: Apache-2.0
"""The documents of a store entry in a team store: one OCI image manifest for each step key.

The configuration is the entry's document (entry.json), and each file is one layer with its bytes as they are, in the
order of the document. The tag is derived from the key. A document is untrusted input.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path, PurePosixPath
from typing import NoReturn

from pydantic import ValidationError

from trtspec.core.diagnostics import first_invalid
from trtspec.core.errors import DigestMismatch, TrtspecError
from trtspec.store.digest import dump_checksummed, parse_checksummed
from trtspec.store.entry import ENTRY_SCHEMA, StoreEntry
from trtspec.store.file_records import FileRecord
from trtspec.store.registries.modelpack import (
    MAX_LAYERS,
    TITLE,
    Descriptor,
    ImageManifest,
    dump,
    parse_image_manifest,
    render_manifest,
)

ENTRY_TYPE = "application/vnd.trtspec.entry.v1"
DOCUMENT_TYPE = "application/vnd.trtspec.entry.v2+json"
CREATED = "org.opencontainers.image.created"
USED = "io.trtspec.entry.used"  # the day of the last use
FILE_TYPE = "application/octet-stream"
TAG_PREFIX = "entry2-"  # with the version of the document: another trtspec does not find what it cannot read


@dataclass(frozen=True)
class RemoteEntry:
    """The validated document of an entry, and the blob of each of its files by path."""

    document: StoreEntry
    blobs: Mapping[str, Descriptor]


def entry_tag(key: str) -> str:
    """Return the tag of a key's entry."""
    return f"{TAG_PREFIX}{key}"


def tagged_key(tag: str) -> str | None:
    """Return the key of an entry's tag, or None for any other tag."""
    key = tag.removeprefix(TAG_PREFIX)
    return key if key != tag and len(key) == 64 and set(key) <= set("0123456789abcdef") else None


def render_document(entry: StoreEntry) -> bytes:
    """Return the document of an entry, as the store writes it."""
    return dump_checksummed(ENTRY_SCHEMA, entry.model_dump(mode="json"))


def render_entry_manifest(entry: StoreEntry, document: bytes, sha256: Mapping[str, str]) -> bytes:
    """Return the image manifest of an entry; `sha256` has the SHA-256 of each content by its BLAKE3 digest.

    Raises TrtspecError if the entry has more than MAX_LAYERS files.
    """
    if len(entry.files) > MAX_LAYERS:
        raise TrtspecError(f"its output has {len(entry.files):,} files; a manifest has at most {MAX_LAYERS:,}")
    layers = [
        {
            "mediaType": FILE_TYPE,
            "digest": f"sha256:{sha256[record.digest]}",
            "size": record.size,
            "annotations": {TITLE: record.path},
        }
        for record in entry.files
    ]
    annotations = {TITLE: entry.name, CREATED: entry.created}
    return render_manifest(document, layers, annotations, ENTRY_TYPE, DOCUMENT_TYPE)


def read_entry(where: str, key: str, image: ImageManifest, data: bytes) -> RemoteEntry:
    """Return the entry of `key` from its verified documents; raises DigestMismatch if they do not describe it."""

    def refuse(reason: str) -> NoReturn:
        raise DigestMismatch(f"not the entry of {key[:12]}: {reason}", where=where)

    body = parse_checksummed(ENTRY_SCHEMA, data)
    if image.artifactType != ENTRY_TYPE or body is None:
        refuse("its document is damaged or of another version")
    try:
        entry = StoreEntry.model_validate({**body, "directory": Path()})
        datetime.fromisoformat(entry.created)
    except ValidationError as error:
        refuse(str(first_invalid(error)))
    except ValueError:
        refuse("its time is invalid")
    if entry.key != key:
        refuse("its document has another key")
    if not math.isfinite(entry.seconds) or entry.seconds < 0:
        refuse("its duration is invalid")
    sizes = [record.size for record in entry.files]
    if [layer.size for layer in image.layers] != sizes:
        refuse("its document and its manifest list different files")
    if problem := _path_conflict(entry.files):
        refuse(f"{problem!a} is listed twice or is also a directory")
    return RemoteEntry(entry, {record.path: layer for record, layer in zip(entry.files, image.layers, strict=True)})


def _path_conflict(files: tuple[FileRecord, ...]) -> str | None:
    paths = [record.path for record in files]
    parents = {str(parent) for path in paths for parent in PurePosixPath(path).parents}
    seen = set[str]()
    for path in paths:
        if path in seen or path in parents:
            return path
        seen.add(path)
    return None


def with_use(manifest: bytes, day: str) -> bytes | None:
    """Return an entry's manifest with another day (YYYY-MM-DD) of its last use, or None if it is not older than that.

    Raises TrtspecError if it is not an entry's manifest.
    """
    image = parse_image_manifest("", manifest)
    if image.artifactType != ENTRY_TYPE or image.annotations.get(USED, "") >= day:
        return None
    return dump({**json.loads(manifest), "annotations": {**image.annotations, USED: day}})
