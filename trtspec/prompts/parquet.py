# SPDX-License-Identifier: Apache-2.0
"""Rows of a parquet file, by pyarrow where it is installed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from trtspec.errors import TrtspecError

EXTRA = "pip install 'trtspec[prompts]', or save the file as JSON lines"


def read_rows(path: Path, raw: bytes, max_bytes: int, max_rows: int) -> list[dict[str, Any]]:
    """Return the rows as objects; raises TrtspecError without pyarrow, and for a file that is damaged or too large.

    `max_bytes` is of the columns unpacked, which the file's own footer tells before they are.
    """
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        missing = isinstance(error, ModuleNotFoundError)
        message = f"a parquet file needs pyarrow, which {'is not installed' if missing else f'cannot be used: {error}'}"
        raise TrtspecError(message, where=str(path), hint=EXTRA) from None
    try:
        file = parquet.ParquetFile(pyarrow.BufferReader(raw))
        groups = [file.metadata.row_group(number) for number in range(file.num_row_groups)]
        nbytes = sum(group.total_byte_size for group in groups)
        if file.metadata.num_rows > max_rows or nbytes > max_bytes:
            message = f"{file.metadata.num_rows:,} rows of {nbytes:,} bytes; at most {max_rows:,} of {max_bytes:,}"
            raise TrtspecError(message, where=str(path), hint="take a part of it")
        rows: list[dict[str, Any]] = file.read().to_pylist()
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        message = f"not a parquet file that pyarrow reads: {str(error).splitlines()[0]}"
        raise TrtspecError(message, where=str(path)) from None
    return rows
