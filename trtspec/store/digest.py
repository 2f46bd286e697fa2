# SPDX-License-Identifier: Apache-2.0
"""What a value is, in 64 hex digits: the canonical form of step fields, and the remembered digests of files.

The canonical form of a value is a tag for its type, the length of what follows, and what follows. No form is the
beginning of another and no two values share one, so 1, True, 1.0 and "1" have four keys.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, cast

from trtspec.core.errors import TrtspecError
from trtspec.core.files import changed_ns, file_lock, identity_of, is_guarded, replace_file
from trtspec.core.hashing import file_sha256
from trtspec.store.checksummed_json import load_sealed, seal

CACHE_SCHEMA = "trtspec.digests/1"
RACY_NS = 2_000_000_000


def canonical(value: object) -> bytes:
    """Return the canonical form of plain data, enum members and frozen dataclasses of them.

    A field with `metadata={"key": False}` is not part of what a dataclass is. TypeError for any other type, subclasses
    of the plain ones included: guessing at a form would let two different values share a key.
    """
    form = _FORMS.get(type(value))
    if form is not None:
        return form(value)
    if isinstance(value, Enum):
        return _frame(b"E", canonical(type(value).__qualname__) + canonical(value.name))
    if _is_frozen(value):
        return _frame(b"C", canonical(type(value).__qualname__) + canonical(key_fields(value)))
    raise TypeError(f"a {type(value).__qualname__} has no canonical form: {value!r}")


def digest_of(tag: str, value: object) -> str:
    """Return the SHA-256 of a value in the role `tag`; the same value in another role has another digest."""
    return hashlib.sha256(tag.encode() + b"\n" + canonical(value)).hexdigest()


def key_fields(value: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that are part of what it is."""
    return {field.name: getattr(value, field.name) for field in fields(value) if field.metadata.get("key", True)}


class DigestCache:
    """SHA-256 of source files, remembered for as long as a file's identity, size and times stay what they were.

    A file that changed in the last two seconds is not remembered: it could be written again without a visible trace.
    One that others may write is remembered by this process alone: a writable mapping changes bytes long before times.
    Several processes may share one cache; a cache that cannot be read is empty, one that cannot be written stays so.
    """

    MAX_FILES = 10_000

    def __init__(self, path: Path, clock_ns: Callable[[], int] = time.time_ns) -> None:
        self._path = path
        self._clock_ns = clock_ns
        self._known = self._load()
        self._here: dict[str, str] = {}

    def reload(self) -> None:
        """Take over what other processes remember by now."""
        self._known |= self._load()

    def lookup(self, path: Path) -> str | None:
        """Return the digest where it is known, without reading the file."""
        identity = identity_of(path)
        if identity in self._here:
            return self._here[identity]
        return self._known[identity] if identity in self._known and is_guarded(path) else None

    def digest(self, path: Path, on_bytes: Callable[[int], None] | None = None) -> str:
        """Return the digest, reading the file only where it is not known; TrtspecError where it changes meanwhile."""
        before = identity_of(path)
        if known := self.lookup(path):
            return known
        digest = file_sha256(path, on_bytes)
        self.learn({path: (before, digest)})
        return digest

    def learn(self, read: Mapping[Path, tuple[str, str]]) -> None:
        """Remember files by their identity before they were read and their digest; TrtspecError where one changed."""
        ensure_unchanged({path: before for path, (before, _) in read.items()})
        settled = [path for path in read if self._clock_ns() - changed_ns(path) > RACY_NS]
        self._here |= dict(read[path] for path in settled)
        self._remember(dict(read[path] for path in settled if is_guarded(path)))

    def learn_own(self, digests: Mapping[Path, str]) -> None:
        """Remember files that nobody but this process wrote, however young they are."""
        self._remember({identity_of(path): digest for path, digest in digests.items() if is_guarded(path)})

    def _remember(self, digests: Mapping[str, str]) -> None:
        if digests.items() <= self._known.items():
            return
        self._known |= digests
        with suppress(OSError):  # a full disk costs the next run a second reading, nothing else
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with file_lock(self._path.with_suffix(".lock")):
                newest = list({**self._load(), **digests}.items())[-self.MAX_FILES :]
                data = seal(CACHE_SCHEMA, {"digests": dict(newest)})
                replace_file(self._path, data)

    def _load(self) -> dict[str, str]:
        document = load_sealed(CACHE_SCHEMA, self._path) or {"digests": {}}
        return cast(dict[str, str], document["digests"])


def ensure_unchanged(before: Mapping[Path, str]) -> None:
    """Raise TrtspecError for a file whose identity is not what it was before it was read."""
    for path, identity in before.items():
        if identity_of(path) != identity:
            raise TrtspecError(
                "the file changed while it was being read",
                where=str(path),
                hint="wait until whatever writes it has ended",
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
    # A file name that is not UTF-8 reaches Python as a str with surrogates; it has a form too.
    str: lambda value: _frame(b"S", value.encode("utf-8", "surrogatepass")),
    bytes: lambda value: _frame(b"Y", value),
    tuple: lambda value: _frame(b"T", _join(value)),
    list: lambda value: _frame(b"L", _join(value)),
    dict: lambda value: _frame(b"D", b"".join(sorted(_join(pair) for pair in value.items()))),
}
