# SPDX-License-Identifier: Apache-2.0
"""SHA-256 digests of values in a canonical form, checksummed JSON documents, and a cache of file digests.

The canonical form of a value is a type tag, the length of the payload and the payload. No form is a prefix of another
and no two values share a form: 1, True, 1.0 and "1" have four different keys. A document with a flipped byte or an
incomplete write is treated as missing. The digests of files are computed in core/hashing.py.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, cast

from trtspec.core.errors import TrtspecError
from trtspec.core.files import (
    UnreadableFile,
    changed_ns,
    file_identity,
    file_lock,
    is_guarded,
    read_bounded,
    replace_file,
)

MAX_DOCUMENT_BYTES = 64 << 20


def dump_checksummed(schema: str, body: dict[str, Any]) -> bytes:
    """Return a JSON document with the schema, the fields of `body`, and a digest of both."""
    document = {"schema": schema, **body}
    return json.dumps({**document, "digest": _digest(document)}, indent=1).encode()


def load_checksummed(schema: str, path: Path) -> dict[str, Any] | None:
    """Return the body of a checksummed document, or None if it is missing, damaged or has another schema."""
    try:
        return parse_checksummed(schema, read_bounded(path, MAX_DOCUMENT_BYTES))
    except (FileNotFoundError, NotADirectoryError, UnreadableFile):
        return None


def parse_checksummed(schema: str, data: bytes) -> dict[str, Any] | None:
    """Return the body of a checksummed document, or None if it is damaged or has another schema."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
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
    """Return True if a document written by `dump_checksummed_text` is unchanged."""
    body, found = data[:-_TAIL_BYTES], data[-_TAIL_BYTES:]
    return len(data) > _TAIL_BYTES and found == _TAIL % _digest_of_text(body)


_TAIL = b',\n "digest": "%b"\n}\n'
_TAIL_BYTES = len(_TAIL % (b"0" * 64))


def _digest_of_text(body: bytes) -> bytes:
    return hashlib.sha256(body + b"\n}\n").hexdigest().encode()


def _digest(document: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


CACHE_SCHEMA = "trtspec.digests/3"
RACY_NS = 2_000_000_000


def canonical(value: object) -> bytes:
    """Return the canonical form of plain data, enum members and frozen dataclasses of them.

    Dataclass fields with `metadata={"key": False}` are excluded. Raises TypeError for any other type, including
    subclasses of plain types: a guessed form could give two different values the same key.
    """
    form = _FORMS.get(type(value))
    if form is not None:
        return form(value)
    if isinstance(value, Enum):
        return _frame(b"E", canonical(type(value).__qualname__) + canonical(value.name))
    if _is_frozen(value):
        return _frame(b"C", canonical(type(value).__qualname__) + canonical(key_fields(value)))
    raise TypeError(f"a {type(value).__qualname__} has no canonical form: {value!r}")


def compute_digest(tag: str, value: object) -> str:
    """Return the SHA-256 of a value's canonical form in hex; different tags give different digests."""
    return hashlib.sha256(tag.encode() + b"\n" + canonical(value)).hexdigest()


def key_fields(value: Any) -> dict[str, Any]:
    return {field.name: getattr(value, field.name) for field in fields(value) if field.metadata.get("key", True)}


class DigestCache:
    """Cache of the digests of source files, valid while a file's identity, size and times are unchanged.

    Files that changed in the last two seconds are not cached: another write could leave the times unchanged. Files that
    other users can write are cached in this process only, because a writable mapping can change bytes long before the
    times. Several processes may share one cache. An unreadable cache is treated as empty; failed writes are ignored.
    """

    MAX_FILES = 10_000

    def __init__(self, path: Path, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self._path = path
        self._clock_ns = clock_ns
        self._known = self._load()
        self._here: dict[str, str] = {}

    def lookup(self, path: Path) -> str | None:
        """Return the cached digest of a file, or None; the file is not read."""
        identity = file_identity(path)
        if identity in self._here:
            return self._here[identity]
        return self._known[identity] if identity in self._known and is_guarded(path) else None

    def learn(self, read: Mapping[Path, tuple[str, str]]) -> None:
        """Cache `(identity before the read, digest)` by path; raises TrtspecError if a file has changed since."""
        ensure_unchanged({path: before for path, (before, _) in read.items()})
        settled = [path for path in read if self._clock_ns() - changed_ns(path) > RACY_NS]
        self._here |= dict(read[path] for path in settled)
        self._remember(dict(read[path] for path in settled if is_guarded(path)))

    def add_written(self, digests: Mapping[Path, str]) -> None:
        """Cache the digests of files that only this process has written, regardless of their age."""
        self._remember({file_identity(path): digest for path, digest in digests.items() if is_guarded(path)})

    def _remember(self, digests: Mapping[str, str]) -> None:
        if digests.items() <= self._known.items():
            return
        self._known |= digests
        with suppress(OSError):  # on a full disk the next run reads the files again
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with file_lock(self._path.with_suffix(".lock")):
                newest = list({**self._load(), **digests}.items())[-self.MAX_FILES :]
                data = dump_checksummed(CACHE_SCHEMA, {"digests": dict(newest)})
                replace_file(self._path, data, durable=False)

    def _load(self) -> dict[str, str]:
        document = load_checksummed(CACHE_SCHEMA, self._path) or {"digests": {}}
        return cast(dict[str, str], document["digests"])


def ensure_unchanged(before: Mapping[Path, str]) -> None:
    """Raise TrtspecError for a file whose identity differs from the one recorded before it was read."""
    for path, identity in before.items():
        if file_identity(path) != identity:
            raise TrtspecError(
                "the file changed while it was being read",
                where=str(path),
                hint="wait until the program that writes it has finished",
            )


def _frame(tag: bytes, body: bytes) -> bytes:
    return b"%s%d:%s" % (tag, len(body), body)


def _join(values: Iterable[object]) -> bytes:
    return b"".join(map(canonical, values))


def _is_frozen(value: object) -> bool:
    return is_dataclass(value) and not isinstance(value, type) and type(value).__dataclass_params__.frozen  # type: ignore[attr-defined]


_FORMS: dict[type, Callable[[Any], bytes]] = {
    type(None): lambda _: _frame(b"N", b""),
    bool: lambda value: _frame(b"B", b"%d" % value),
    int: lambda value: _frame(b"I", b"%d" % value),
    float: lambda value: _frame(b"F", repr(value).encode()),
    # A file name that is not UTF-8 is a str with surrogates in Python; it needs a form too.
    str: lambda value: _frame(b"S", value.encode("utf-8", "surrogatepass")),
    bytes: lambda value: _frame(b"Y", value),
    tuple: lambda value: _frame(b"T", _join(value)),
    list: lambda value: _frame(b"L", _join(value)),
    dict: lambda value: _frame(b"D", b"".join(sorted(_join(pair) for pair in value.items()))),
}
