# SPDX-License-Identifier: Apache-2.0
"""JSON objects with an embedded SHA-256: store documents, manifests and per-user records.

A document with a flipped byte or an incomplete write is treated as missing.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from trtspec.core.files import UnreadableFile, read_bounded

MAX_DOCUMENT_BYTES = 64 << 20


def dump_checksummed(schema: str, body: dict[str, Any]) -> bytes:
    """Return a JSON document with the schema, the body and a digest of both."""
    document = {"schema": schema, **body}
    return json.dumps({**document, "digest": _digest(document)}, indent=1).encode()


def load_checksummed(schema: str, path: Path) -> dict[str, Any] | None:
    """Return the body of a checksummed document, or None if it is missing, damaged or has another schema."""
    try:
        document = json.loads(read_bounded(path, MAX_DOCUMENT_BYTES))
    except (FileNotFoundError, NotADirectoryError, UnreadableFile, ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    digest = document.pop("digest", None)
    if digest != _digest(document) or document.pop("schema", None) != schema:
        return None
    return document


def dump_checksummed_text(document: dict[str, Any]) -> bytes:
    """Return a JSON object whose last key, `digest`, is the SHA-256 of the text without that key.

    Unlike `dump_checksummed`, this digest covers every byte, including whitespace.
    """
    body = json.dumps(document, indent=1).encode().removesuffix(b"\n}")
    return body + _TAIL % _digest_of_text(body)


def has_valid_checksum(data: bytes) -> bool:
    """Return whether a document written by `dump_checksummed_text` is unchanged."""
    body, found = data[:-_TAIL_BYTES], data[-_TAIL_BYTES:]
    return len(data) > _TAIL_BYTES and found == _TAIL % _digest_of_text(body)


_TAIL = b',\n "digest": "%b"\n}\n'
_TAIL_BYTES = len(_TAIL % (b"0" * 64))


def _digest_of_text(body: bytes) -> bytes:
    return hashlib.sha256(body + b"\n}\n").hexdigest().encode()


def _digest(document: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
