# SPDX-License-Identifier: Apache-2.0
"""Files that nobody vouches for: opened only where they lie inside their directory, parsed only within bounds.

Knows nothing of what the files mean. What is spent on a file is bounded by numbers of ours before anything is built
from it: the bytes read, the values parsed, how deep they nest.
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
    """Return the path of the file `name` in `root`; raises CheckpointError where it is a link that leads out of it.

    The links of a hub cache's snapshot, CACHE/REPOSITORY/snapshots/COMMIT, may lead into the repository's blobs and
    into the blobs that the cache's repositories share.
    """
    if not name.isprintable():
        raise CheckpointError(
            f"the file name {shown(name)} has unprintable characters", where=str(root), hint="rename the file"
        )
    path = root / name
    if path.is_symlink():
        home, real = Path(os.path.realpath(root)), Path(os.path.realpath(path))
        repository = home.parent.parent if home.parent.name == "snapshots" else None
        blobs = [repository / "blobs", repository.parent / "blobs"] if repository else []
        allowed = [home, *(Path(os.path.realpath(folder)) for folder in blobs)]
        if not any(real.is_relative_to(folder) for folder in allowed):
            message = f"a link to {shown(os.readlink(path))}, which is outside its directory"
            raise CheckpointError(message, where=str(path), hint="put the file itself there")
    return path


def parse_object(raw: bytes, max_values: int) -> dict[str, Any]:
    """Return the JSON object in `raw`, of at most `max_values` values, counting each list, mapping and comma.

    Stricter than Python's parser where that is laxer than JSON: keys are there once, numbers are finite, text is
    encodable. Raises
    ValueError that says what is wrong.
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


def shown(text: str) -> str:
    """Return `text` quoted and escaped for a message, cut where it is long."""
    return repr(text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}...")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        ((name, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"it names {shown(name)} twice")
    return table


def _integer(text: str) -> int | float:
    if len(text) > MAX_DIGITS:
        raise ValueError(f"it has a number of {len(text):,} digits")
    return int(text) if text != "-0" else -0.0  # as other parsers have it: no integer has that sign


def _float(text: str) -> float:
    value = float(text) if len(text) <= MAX_DIGITS else float("inf")
    if value in (float("inf"), float("-inf")):
        raise ValueError(f"the number {shown(text)} is too large or too long")
    return value


def _constant(text: str) -> float:
    raise ValueError(f"{text} is no number")


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_int=_integer, parse_float=_float, parse_constant=_constant)


def is_shallow(value: Any) -> bool:
    """Return whether a JSON value is nested at most MAX_DEPTH deep."""
    level = [value]
    for _ in range(MAX_DEPTH):
        lists = [node.values() if isinstance(node, dict) else node for node in level if isinstance(node, (dict, list))]
        level = [child for node in lists for child in node]
    return not level
