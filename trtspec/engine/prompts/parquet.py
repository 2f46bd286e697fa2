# SPDX-License-Identifier: Apache-2.0
"""Read the rows of a parquet file with pyarrow (optional) in a child process with limits.

A footer of some hundred bytes can describe columns of many gigabytes. Therefore only the columns that a prompt format
uses are read, a few rows at a time, with limits on the unpacked size.
"""

from __future__ import annotations

from collections.abc import Collection
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trtspec.core.errors import TrtspecError
from trtspec.core.sandbox import REFUSED, SandboxError, SandboxLimits, run_in_child

EXTRA = "pip install 'trtspec[prompts]', or save the file as JSON lines"
PART = "use a part of the file"
ROWS_AT_ONCE = 64
SHOWN = 8  # columns listed in the error for an unknown format
LIMITS = SandboxLimits(memory_bytes=2 << 30, cpu_s=60, wall_s=120, output_bytes=320 << 20, files=64)


def read_rows(
    path: Path, raw: bytes, columns: Collection[str], max_bytes: int, max_rows: int, max_values: int
) -> list[dict[str, Any]]:
    """Return the rows as objects with the given columns, if the file has them.

    `max_bytes` and `max_values` limit these columns when unpacked. Raises TrtspecError if pyarrow is missing, or if the
    file is corrupt or too large.
    """
    if find_spec("pyarrow") is None:
        message = "reading parquet files needs pyarrow, which is not installed"
        raise TrtspecError(message, where=str(path), hint=EXTRA)
    options = {
        "columns": sorted(columns),
        "max_bytes": max_bytes,
        "max_rows": max_rows,
        "max_values": max_values,
    }
    try:
        rows: list[dict[str, Any]] = run_in_child("trtspec.engine.prompts.parquet:unpack", options, raw, limits=LIMITS)
    except SandboxError as error:
        if error.cause == REFUSED:
            raise TrtspecError(error.message, where=str(path), hint=error.hint) from None
        raise TrtspecError(f"pyarrow cannot read the file: {error.message}", where=str(path), hint=PART) from None
    return rows


def unpack(options: dict[str, Any], raw: bytes) -> list[dict[str, Any]]:
    """Return the rows of the parquet file `raw`; runs in the child process.

    If the file lacks all requested columns, the rows have its first columns, with None, for the caller's error message.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise TrtspecError(f"reading parquet files needs pyarrow, which fails to import: {error}", hint=EXTRA) from None
    try:
        file = parquet.ParquetFile(pyarrow.BufferReader(raw), pre_buffer=False)
        if file.metadata.num_rows > options["max_rows"]:
            raise TrtspecError(f"{file.metadata.num_rows:,} rows, expected at most {options['max_rows']:,}", hint=PART)
        names = file.schema_arrow.names
        columns = [name for name in names if name in options["columns"]]
        if not columns:  # the caller reports the columns
            return [dict.fromkeys(names[:SHOWN])] * file.metadata.num_rows
        return _rows(file, columns, options)
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        words = str(error).splitlines() or [type(error).__name__]
        raise TrtspecError(f"not a valid parquet file: {words[0][:300]}") from None


def _rows(file: Any, columns: list[str], options: dict[str, Any]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    nbytes = values = 0
    for batch in file.iter_batches(ROWS_AT_ONCE, columns=columns, use_threads=False):
        nbytes += batch.nbytes
        values += sum(_values(column) for column in batch.columns)
        if nbytes > options["max_bytes"] or values > options["max_values"]:
            most = f"{options['max_bytes']:,} bytes and {options['max_values']:,} values"
            raise TrtspecError(f"the rows up to row {len(rows) + 1} unpack to more than {most}", hint=PART)
        rows += [{name: _plain(value) for name, value in row.items()} for row in batch.to_pylist()]
    return rows


def _values(array: Any) -> int:
    """Return the number of values of a column, including values of nested lists and structs."""
    from pyarrow import types

    kind = array.type
    if types.is_struct(kind):
        return len(array) + sum(_values(each) for each in array.flatten())
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return len(array) + _values(array.flatten())
    if types.is_map(kind):
        return len(array) + _values(array.keys) + _values(array.items)
    if types.is_dictionary(kind):
        return len(array) + _values(array.dictionary)
    return len(array)


def _plain(value: Any) -> Any:
    """Return a value as a JSON value; other types become their name in angle brackets."""
    if isinstance(value, dict):
        return {str(name): _plain(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value if value is None or isinstance(value, (str, int, float, bool)) else f"<{type(value).__name__}>"
