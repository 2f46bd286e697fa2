# SPDX-License-Identifier: Apache-2.0
"""Reads a prompt file as records: JSON lines, a JSON list, rows of a parquet file or lines of text, optionally gzipped.

The file type is detected from the content, not the name; prompt formats interpret the records. Files are untrusted, so
bytes, records and values are limited before parsing.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trtspec.checkpoints.safe_json import is_shallow, parse_object
from trtspec.core.errors import TrtspecError
from trtspec.core.files import describe_read_error, read_bounded
from trtspec.engine.prompts.prompt import PromptRecord

MAX_BYTES = 64 << 20  # of the file, and of its unpacked content
MAX_PROMPTS = 100_000
MAX_VALUES = 100_000  # lists, objects and commas of one line
MAX_NESTED = 4_000_000  # lists and objects of a file; each uses far more memory than its bytes in the file
GZIP, PARQUET = b"\x1f\x8b", b"PAR1"
HINT = "see trtspec datasets --list for examples and docs/prompts.md for the supported formats"
PART_HINT = "use a part of the file: head -n 1000, or for a long JSON list jq '.[:1000]'"
SPACE = re.compile(r"[ \t\r\n]*")
UNPRINTABLE = re.compile(r"[\x00-\x08\x0e-\x1f]")


def read_records(path: Path) -> list[PromptRecord]:
    """Return the records of a file, at least one; raise TrtspecError with the line of the first invalid record."""
    raw = _read(path)
    records = _read_rows(path, raw) if raw.startswith(PARQUET) else _read_text(path, raw)
    if not 0 < len(records) <= MAX_PROMPTS:
        raise _wrong_number(path, len(records))
    return records


def _read(path: Path) -> bytes:
    try:
        raw = read_bounded(path, MAX_BYTES)
    except OSError as error:
        is_large = path.is_file() and path.stat().st_size > MAX_BYTES
        raise TrtspecError(describe_read_error(error), where=str(path), hint=PART_HINT if is_large else HINT) from None
    return _unpacked(path, raw) if raw.startswith(GZIP) else raw


def _unpacked(path: Path, raw: bytes) -> bytes:
    unpacking = zlib.decompressobj(wbits=31)  # of gzip
    try:
        data = unpacking.decompress(raw, MAX_BYTES + 1)
    except zlib.error:
        raise TrtspecError("not a complete gzip file", where=str(path), hint=HINT) from None
    if len(data) > MAX_BYTES:
        raise TrtspecError(f"unpacks to more than {MAX_BYTES:,} bytes", where=str(path), hint=PART_HINT)
    if not unpacking.eof:
        raise TrtspecError("not a complete gzip file", where=str(path), hint=HINT)
    return data


def _read_rows(path: Path, raw: bytes) -> list[PromptRecord]:
    from trtspec.engine.prompts.parquet import read_rows

    rows = read_rows(path, raw, MAX_BYTES, MAX_PROMPTS, MAX_NESTED)
    return [PromptRecord(f"{path}: row {number}", number, row) for number, row in enumerate(rows, 1)]


def _read_text(path: Path, raw: bytes) -> list[PromptRecord]:
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise TrtspecError("not UTF-8", where=str(path), hint=HINT) from None
    if sum(map(text.count, "[{")) > MAX_NESTED:
        raise TrtspecError(f"more than {MAX_NESTED:,} lists and objects", where=str(path), hint=PART_HINT)
    begins = text.lstrip()[:1]
    if begins == "[":
        return list(_items(path, text))
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if len(lines) > MAX_PROMPTS:
        raise _wrong_number(path, len(lines))
    parse = _parse if begins == "{" else _line
    return [PromptRecord(where, number, parse(where, line)) for number, line in lines for where in [f"{path}:{number}"]]


def _parse(where: str, line: str) -> dict[str, Any]:
    try:
        return parse_object(line.encode(), MAX_VALUES)
    except ValueError as error:
        raise TrtspecError(str(error), where=where, hint="JSON lines have one object per line") from None


def _line(where: str, line: str) -> str:
    """Return a line of text; raise TrtspecError if it has control characters."""
    if UNPRINTABLE.search(line):
        raise TrtspecError("neither JSON nor text: it has control characters", where=where, hint=HINT)
    return line.removesuffix("\r")


def _items(path: Path, text: str) -> Iterator[PromptRecord]:
    """Yield the items of a JSON list, each with the line in which it begins."""
    decoder, line, counted = json.JSONDecoder(), 1, 0
    at, number = text.index("[") + 1, 0
    while True:
        at = SPACE.match(text, at).end()  # type: ignore[union-attr]  # it matches anywhere
        if text.startswith("]", at) and not number:
            return
        line, counted, number = line + text.count("\n", counted, at), at, number + 1
        where = f"{path}:{line}: record {number}"  # the record number is needed if the file has a single line
        if number > MAX_PROMPTS:
            raise _wrong_number(path, number)
        value, at = _item(decoder, text, at, where)
        yield PromptRecord(where, number, value)
        at = SPACE.match(text, at).end()  # type: ignore[union-attr]
        if text.startswith("]", at):
            return
        if not text.startswith(",", at):
            message = "not valid JSON: missing comma or end of the list"
            raise TrtspecError(message, where=where, hint=HINT)
        at += 1


def _item(decoder: json.JSONDecoder, text: str, at: int, where: str) -> tuple[Any, int]:
    try:
        value, end = decoder.raw_decode(text, at)
        shallow = is_shallow(value)
    except RecursionError:
        shallow = False
    except ValueError as error:
        hint = "plain text may not begin with [ or {"
        raise TrtspecError(f"not valid JSON: {getattr(error, 'msg', error)}", where=where, hint=hint) from None
    if not shallow:
        raise TrtspecError("JSON nested too deeply", where=where, hint=HINT)
    return value, end


def _wrong_number(path: Path, number: int) -> TrtspecError:
    hint = PART_HINT if number else HINT
    return TrtspecError(f"{number:,} prompts, expected 1 to {MAX_PROMPTS:,}", where=str(path), hint=hint)
