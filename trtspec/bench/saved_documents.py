# SPDX-License-Identifier: Apache-2.0
"""Saved documents of what was measured: told by their form, and kept by artifact.

An artifact's contents are fixed, so commands that measure one leave their document in the state directory, below the
SHA-256 of its manifest: documents/SHA256/KIND.json, the newest of each kind. What is measured before there is an
artifact lies below the SHA-256 of its target. These are records (records.py): damaged ones do not count. Files of
strangers are bounded before they are parsed.
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
from trtspec.core.files import read_bounded, unreadable
from trtspec.store.manifest import manifest_sha256

MAX_BYTES, MAX_VALUES = 64 << 20, 400_000
# The keys that tell a document that does not say its `kind`; the first that is there does.
KEYS = {"methods": "profile", "speculative": "bench", "checks": "verify", "steps": "build"}
KINDS = ("baseline", "bench", "build", "load", "profile", "tune", "verify")


@dataclass(frozen=True)
class Saved:
    """A document of a known kind; `time` is when it was measured or, where it does not say so, its file's."""

    path: Path
    kind: str
    sha256: str
    time: datetime
    values: Mapping[str, Any]

    def text(self, *keys: str) -> str:
        """Return a text within it, "" where there is none."""
        return text_in(self.values, *keys)


def text_in(values: Mapping[str, Any], *keys: str) -> str:
    """Return a text within a document, "" where there is none."""
    found: Any = values
    for key in keys:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, str) else ""


def keep_document(root: Path, kind: str, document: Mapping[str, Any]) -> None:
    """Keep what was measured of an artifact; a directory that takes nothing costs the copy, nothing else."""
    _keep(_folder(manifest_sha256(root)), kind, document)


def keep_of_target(sha256: str, name: str, document: Mapping[str, Any]) -> None:
    """Keep what was measured of a target, as one of the same name; as with an artifact."""
    _keep(_folder(sha256), name, document)


def _keep(folder: Path, name: str, document: Mapping[str, Any]) -> None:
    with suppress(OSError):
        write_record(folder / f"{name}.json", document)


def kept_documents(root: Path, target: str) -> list[Path]:
    """Return the files that were kept of an artifact, and of its target by that one's SHA-256; none that is damaged."""
    found = [path for each in (manifest_sha256(root), target) for path in sorted(_folder(each).glob("*.json"))]
    return [path for path in found if read_record(path) is not None]


def _folder(sha256: str) -> Path:
    return records_dir("documents", sha256)


def read_document(path: Path) -> Saved:
    """Return a document; raises TrtspecError for a file that is none of a known kind."""
    hint = f"--json of {', '.join(KINDS)} prints such documents"
    try:
        data, modified = read_bounded(path, MAX_BYTES), path.stat().st_mtime
        values = parse_object(data, MAX_VALUES)
    except OSError as error:
        raise TrtspecError(unreadable(error), where=str(path), hint=hint) from None
    except ValueError as error:
        raise TrtspecError(str(error), where=str(path), hint=hint) from None
    kind = _kind(values)
    if kind not in KINDS:
        raise TrtspecError("no document of a command that measures", where=str(path), hint=hint)
    return Saved(
        path,
        kind,
        hashlib.sha256(data).hexdigest(),
        _time(values.get("time", values.get("ended_at")), modified),
        values,
    )


def _kind(values: Mapping[str, Any]) -> str:
    return text_in(values, "kind") if "kind" in values else next((KEYS[key] for key in KEYS if key in values), "")


def _time(said: Any, modified: float) -> datetime:
    """Return what a document says of its time, in UTC, else when its file was written."""
    with suppress(TypeError, ValueError):
        time = datetime.fromisoformat(said)
        if time.tzinfo:
            return time.astimezone(timezone.utc)
    return datetime.fromtimestamp(modified, timezone.utc)


def prompts_sha256(texts: Iterable[str]) -> str:
    """Return the digest of prompts as they are sent, in their order."""
    return hashlib.sha256(json.dumps(list(texts)).encode()).hexdigest()
