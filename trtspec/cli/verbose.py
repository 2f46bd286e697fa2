# SPDX-License-Identifier: Apache-2.0
"""Log output of `-v` on stderr, with the seconds since the start and the name of the package."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from trtspec.cli.render import note
from trtspec.core.diagnostics import escape_unprintable, mask_tokens

PACKAGE = logging.getLogger("trtspec")


@contextmanager
def verbose() -> Iterator[None]:
    """Show log records of level INFO and above while the block runs."""
    handler, level = _Notes(), PACKAGE.level
    PACKAGE.addHandler(handler)
    PACKAGE.setLevel(logging.INFO)
    try:
        yield
    finally:
        PACKAGE.removeHandler(handler)
        PACKAGE.setLevel(level)


class _Notes(logging.Handler):
    """Log handler that prints above progress bars, with control characters escaped and tokens redacted."""

    def emit(self, record: logging.LogRecord) -> None:
        package = record.name.split(".")[1]
        for line in mask_tokens(self.format(record)).splitlines():
            note(f"{record.relativeCreated / 1000:8.2f} s  {package}: {escape_unprintable(line)}", "dim")
