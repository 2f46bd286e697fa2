# SPDX-License-Identifier: Apache-2.0
"""Small files that survive a loss of power, and that notice when they did not.

Owns how bytes reach the disk for good and the seal of the store's own documents: JSON objects that carry the
SHA-256 of themselves, so that a flipped byte or a half-written file reads as nothing instead of as something else.
"""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

MAX_DOCUMENT_BYTES = 64 << 20


def sync(path: Path) -> None:
    """Wait until a file's bytes, or a directory's list of names, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace_file(path: Path, data: bytes, temporary: Path) -> None:
    """Put `data` at `path` whole or not at all; `temporary` is a name of the caller's on the same file system."""
    temporary.write_bytes(data)
    sync(temporary)
    os.replace(temporary, path)
    sync(path.parent)


def seal(schema: str, body: dict[str, Any]) -> bytes:
    """Return a JSON document that holds `body`, what it is and its own digest."""
    document = {"schema": schema, **body}
    return json.dumps({**document, "digest": _digest(document)}, indent=1).encode()


def load_sealed(schema: str, path: Path) -> dict[str, Any] | None:
    """Return the body of a sealed document, or None where there is none, or not a sound one of this schema."""
    try:
        if path.stat().st_size > MAX_DOCUMENT_BYTES:
            return None
        document = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    digest = document.pop("digest", None)
    if digest != _digest(document) or document.pop("schema", None) != schema:
        return None
    return document


def _digest(document: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
