# SPDX-License-Identifier: Apache-2.0
"""Failures of stdout and stderr: a full disk, a closed descriptor, a closed pipe.

The proxies of this module convert an OSError of these two streams to an OutputError where it is raised, because the
OSError does not identify its file.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast


class OutputError(Exception):
    """Raised internally if writing to stdout or stderr fails; `is_left` is True if the reader closed the pipe."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(str(cause))
        self.is_left = cause.errno == errno.EPIPE
        self.strerror = cause.strerror


class _Stream:
    """Proxy of a text stream that raises OutputError for failed writes."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._failure: OutputError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        with self._guarded():
            return self._stream.write(text)

    def flush(self) -> None:
        with self._guarded():
            self._stream.flush()

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        if self._failure:  # a library swallowed the first error
            raise self._failure
        try:
            yield
        except OSError as error:
            self._failure = OutputError(error)
            null = os.open(os.devnull, os.O_WRONLY)  # flushing the buffer would fail again at interpreter exit
            os.dup2(null, self._stream.fileno())
            os.close(null)
            raise self._failure from None


@contextmanager
def guarded_streams() -> Iterator[None]:
    """Make both streams raise OutputError while the block runs; replace closed streams."""
    _open_closed()
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = cast(TextIO, _Stream(before[0])), cast(TextIO, _Stream(before[1]))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def _open_closed() -> None:
    """Open closed descriptors 0 to 2 so that no other file receives their numbers; writing to stdout then fails."""
    for descriptor, mode in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, mode)  # opens the lowest free descriptor, which is this one
    # print(file=None) writes to stdout, and discards everything if stdout is None too
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115
