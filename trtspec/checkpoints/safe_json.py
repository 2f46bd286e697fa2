# SPDX-License-Identifier: Apache-2.0
"""Safe access to untrusted files: open them only inside their directory, and parse them within limits.

The number of bytes read, the number of values parsed and the nesting depth are checked before any object is returned.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

from trtspec.core.errors import CheckpointError

MAX_TEXT_BYTES = 32 << 20
MAX_DEPTH = 32
MAX_DIGITS = 40
MAX_SHOWN = 200


def inside(root: Path, name: str) -> Path:
    """Return the path of the file `name` in `root`; raise CheckpointError for a link to a place outside.

    Links in a hub cache's snapshot, CACHE/REPOSITORY/snapshots/COMMIT, may point to the repository's blobs and to the
    blobs shared by the cache's repositories.
    """
    if not name.isprintable():
        raise CheckpointError(
            f"the file name {repr_short(name)} has unprintable characters", where=str(root), hint="rename the file"
        )
    path = root / name
    if path.is_symlink():
        home, real = Path(os.path.realpath(root)), Path(os.path.realpath(path))
        repository = home.parent.parent if home.parent.name == "snapshots" else None
        blobs = [repository / "blobs", repository.parent / "blobs"] if repository else []
        allowed = [home, *(Path(os.path.realpath(folder)) for folder in blobs)]
        if not any(real.is_relative_to(folder) for folder in allowed):
            message = f"a link to {repr_short(os.readlink(path))}, which is outside its directory"
            raise CheckpointError(message, where=str(path), hint="replace the link by the file itself")
    return path


def parse_object(raw: bytes, max_values: int) -> dict[str, Any]:
    """Parse the JSON object in `raw`, of at most `max_values` values; raise ValueError with the reason.

    Each list, mapping and comma counts as one value. The parser is stricter than Python's: keys are unique, numbers are
    finite, and text can be encoded as UTF-8.
    """
    in_memory = len(raw) * (1 if raw.isascii() else 4)  # Python may take four bytes for every character
    if in_memory > MAX_TEXT_BYTES:
        raise ValueError(f"{in_memory:,} bytes of text in memory; at most {MAX_TEXT_BYTES:,} are parsed")
    values = sum(raw.count(mark) for mark in (b"[", b"{", b","))
    if values > max_values:
        raise ValueError(f"JSON of {values:,} values; at most {max_values:,} are parsed")
    try:
        value = _DECODER.decode(raw.decode("utf-8"))
        shallow = is_shallow(value)
    except RecursionError:
        shallow = False
    except ValueError as error:
        raise ValueError(f"not valid JSON: {error}") from None
    if not shallow:
        raise ValueError(f"JSON nested more than {MAX_DEPTH} deep")
    if not isinstance(value, dict):
        raise ValueError("not a JSON object")
    if b"\\ud" in raw.lower():
        _check_is_text(value)
    return value


def _check_is_text(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("not text: it has half a surrogate pair") from None


def repr_short(text: str) -> str:
    """Return `text` quoted and escaped for a message, truncated if it is long."""
    return repr(text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}...")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        ((name, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"duplicate key {repr_short(name)}")
    return table


def _integer(text: str) -> int | float:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"it has a number of {len(text):,} digits")
    return int(text) if text != "-0" else -0.0  # as in other parsers: only floats have a negative zero


def _float(text: str) -> float:
    value = float(text) if len(text) <= MAX_DIGITS else float("inf")
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"the number {repr_short(text)} is too large or too long")
    return value


def _constant(text: str) -> float:
    raise ValueError(f"{text} is not a number")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_int=_integer, parse_float=_float, parse_constant=_constant)


def is_shallow(value: Any) -> bool:
    """Return whether a JSON value is nested at most MAX_DEPTH deep."""
    level = [value]
    for _ in range(MAX_DEPTH):
        lists = [node.values() if isinstance(node, dict) else node for node in level if isinstance(node, (dict, list))]
        level = [child for node in lists for child in node]
    return not level
