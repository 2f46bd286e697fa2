# SPDX-License-Identifier: Apache-2.0
"""Standard output and standard error of a command: a full disk, a closed descriptor, a reader that has left.

Owns what ends a command there. An error of these two streams is told from every other OSError where it is raised, since
later nothing about it says which file it is of.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO, cast


class OutputError(Exception):
    """Standard output or standard error takes no more, with the OSError of it; no user sees it raised."""

    def __init__(self, cause: OSError) -> None:
        super().__init__(str(cause))
        self.is_left = cause.errno == errno.EPIPE
        self.strerror = cause.strerror


class _Stream:
    """A text stream whose failures are OutputErrors; everything else is the stream's own."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._failure: OutputError | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write like the stream."""
        with self._guarded():
            return self._stream.write(text)

    def flush(self) -> None:
        """Flush like the stream."""
        with self._guarded():
            self._stream.flush()

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        if self._failure:  # whoever swallowed the first one, as libraries do that try a stream out
            raise self._failure
        try:
            yield
        except OSError as error:
            self._failure = OutputError(error)
            _silence(self._stream)
            raise self._failure from None


@contextmanager
def guarded_streams() -> Iterator[None]:
    """Let both streams raise OutputError while the block runs; one that was closed is there, and takes nothing."""
    _open_closed()
    before = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = cast(TextIO, _Stream(before[0])), cast(TextIO, _Stream(before[1]))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def _open_closed() -> None:
    """Fill closed descriptors, so that no file of ours gets their numbers; what is written to stdout fails."""
    for descriptor, mode in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, mode)  # the lowest free number is this one
    # print() takes a missing stderr for stdout, and swallows everything where that is missing too
    sys.stdout = sys.stdout or open(1, "w", closefd=False)  # noqa: SIM115
    sys.stderr = sys.stderr or open(2, "w", closefd=False)  # noqa: SIM115


def _silence(stream: TextIO) -> None:
    """Lead a stream nowhere: what it still holds would fail once more when the interpreter ends."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)
