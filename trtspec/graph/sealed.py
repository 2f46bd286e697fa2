# SPDX-License-Identifier: Apache-2.0
"""The store's own documents: JSON objects that carry the SHA-256 of themselves.

So a flipped byte or a half-written file reads as nothing instead of as something else.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from trtspec.files import UnfitFile, read_bounded

MAX_DOCUMENT_BYTES = 64 << 20


def seal(schema: str, body: dict[str, Any]) -> bytes:
    """Return a JSON document that holds `body`, what it is and its own digest."""
    document = {"schema": schema, **body}
    return json.dumps({**document, "digest": _digest(document)}, indent=1).encode()


def load_sealed(schema: str, path: Path) -> dict[str, Any] | None:
    """Return the body of a sealed document, or None where there is none, or not a sound one of this schema."""
    try:
        document = json.loads(read_bounded(path, MAX_DOCUMENT_BYTES))
    except (FileNotFoundError, NotADirectoryError, UnfitFile, ValueError, RecursionError):
        return None
    if not isinstance(document, dict):
        return None
    digest = document.pop("digest", None)
    if digest != _digest(document) or document.pop("schema", None) != schema:
        return None
    return document


def _digest(document: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
