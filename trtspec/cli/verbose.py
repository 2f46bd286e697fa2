# SPDX-License-Identifier: Apache-2.0
"""What `-v` shows: the work of every package as it is logged, on stderr, with the seconds since the start."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from trtspec.cli.render import note
from trtspec.core.diagnostics import blot_tokens, printable

PACKAGE = logging.getLogger("trtspec")


@contextmanager
def verbose() -> Iterator[None]:
    """Show what is logged while the block runs."""
    handler, level = _Notes(), PACKAGE.level
    PACKAGE.addHandler(handler)
    PACKAGE.setLevel(logging.INFO)
    try:
        yield
    finally:
        PACKAGE.removeHandler(handler)
        PACKAGE.setLevel(level)


class _Notes(logging.Handler):
    """Prints records between the bars of progress; paths and commands in them may be a stranger's, or hold a token."""

    def emit(self, record: logging.LogRecord) -> None:
        package = record.name.split(".")[1]
        for line in blot_tokens(self.format(record)).splitlines():
            note(f"{record.relativeCreated / 1000:8.2f} s  {package}: {printable(line)}", "dim")
