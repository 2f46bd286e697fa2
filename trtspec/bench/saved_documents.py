# SPDX-License-Identifier: Apache-2.0
"""Save and load measurement documents, recognized by their structure and stored per artifact.

An artifact's contents are fixed, so measuring commands save their document in the state directory under the SHA-256 of
its manifest: documents/SHA256/KIND.json, the newest of each kind. Measurements before an artifact exists are stored
under the SHA-256 of its target. They are records (records.py): damaged ones are ignored. Untrusted files are limited in
size before parsing.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from trtspec.bench.records import read_record, records_dir, write_record
from trtspec.checkpoints.safe_json import parse_object
from trtspec.core.errors import TrtspecError
from trtspec.core.files import describe_read_error, read_bounded
from trtspec.store.manifest import manifest_sha256

MAX_BYTES, MAX_VALUES = 64 << 20, 400_000
# The first of these keys that is present gives the kind of a document without `kind`.
KEYS = {"methods": "profile", "speculative": "bench", "checks": "verify", "steps": "build"}
KINDS = ("baseline", "bench", "build", "load", "profile", "tune", "verify")


@dataclass(frozen=True)
class SavedDocument:
    """A document of a known kind; `time` is its recorded time, else its file's modification time."""

    path: Path
    kind: str
    sha256: str
    time: datetime
    values: Mapping[str, Any]

    def text(self, *keys: str) -> str:
        """Return the nested text at `keys`, or ""."""
        return nested_text(self.values, *keys)


def nested_text(values: Mapping[str, Any], *keys: str) -> str:
    """Return the nested text at `keys` of a document, or ""."""
    found: Any = values
    for key in keys:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, str) else ""


def save_document(root: Path, kind: str, document: Mapping[str, Any]) -> None:
    """Save an artifact's document; write errors are ignored."""
    _save(_folder(manifest_sha256(root)), kind, document)


def save_target_document(sha256: str, name: str, document: Mapping[str, Any]) -> None:
    """Save a target's document under `name`; write errors are ignored."""
    _save(_folder(sha256), name, document)


def _save(folder: Path, name: str, document: Mapping[str, Any]) -> None:
    with suppress(OSError):
        write_record(folder / f"{name}.json", document)


def list_documents(root: Path, target: str) -> list[Path]:
    """Return the files of all undamaged documents of an artifact and of the target with SHA-256 `target`."""
    found = [path for each in (manifest_sha256(root), target) for path in sorted(_folder(each).glob("*.json"))]
    return [path for path in found if read_record(path) is not None]


def _folder(sha256: str) -> Path:
    return records_dir("documents", sha256)


def read_document(path: Path) -> SavedDocument:
    """Return a document; raise TrtspecError if the file is not of a known kind."""
    hint = f"create one with --json of {', '.join(KINDS)}"
    try:
        data, modified = read_bounded(path, MAX_BYTES), path.stat().st_mtime
        values = parse_object(data, MAX_VALUES)
    except OSError as error:
        raise TrtspecError(describe_read_error(error), where=str(path), hint=hint) from None
    except ValueError as error:
        raise TrtspecError(str(error), where=str(path), hint=hint) from None
    kind = _kind(values)
    if kind not in KINDS:
        raise TrtspecError("not a document of a measuring command", where=str(path), hint=hint)
    return SavedDocument(
        path,
        kind,
        hashlib.sha256(data).hexdigest(),
        _time(values.get("time", values.get("ended_at")), modified),
        values,
    )


def _kind(values: Mapping[str, Any]) -> str:
    return nested_text(values, "kind") if "kind" in values else next((KEYS[key] for key in KEYS if key in values), "")


def _time(said: Any, modified: float) -> datetime:
    """Return a document's recorded time in UTC, else its file's modification time."""
    with suppress(TypeError, ValueError):
        time = datetime.fromisoformat(said)
        if time.tzinfo:
            return time.astimezone(timezone.utc)
    return datetime.fromtimestamp(modified, timezone.utc)


def prompts_sha256(texts: Iterable[str]) -> str:
    """Return the digest of prompts as sent, in order."""
    return hashlib.sha256(json.dumps(list(texts)).encode()).hexdigest()
