# SPDX-License-Identifier: Apache-2.0
"""Where a response of the server ends, so that the next request can use the client's connection. Pure."""

from __future__ import annotations

import re

from trtspec.serving.front.requests import END, MAX_HEAD_BYTES

STATUS = re.compile(rb"HTTP/1\.[01] ([1-5][0-9][0-9])[ \r]")
LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]+)[ \t]*\r\n", re.IGNORECASE)
CHUNKED = re.compile(rb"\r\ntransfer-encoding:[ \t]*chunked[ \t]*\r\n", re.IGNORECASE)
CLOSE = re.compile(rb"\r\nconnection:[ \t]*close[ \t]*\r\n", re.IGNORECASE)
LONGEST_LINE = 1 << 10  # of a chunk's size
NO_BODY = (b"204", b"304")


class Malformed(Exception):
    """A response that does not follow HTTP/1.1."""


class Response:
    """Follows the bytes of one response; `is_over` once the last one was seen."""

    def __init__(self) -> None:
        self.is_over = False
        self.closes = False  # the connection ends with the response
        self._head: bytearray | None = bytearray()
        self._left: int | None = None  # of a body with a length, or of a chunk with its end of line; None: until EOF
        self._is_chunked = self._is_last = False
        self._line = b""  # the beginning of a line with a chunk's size

    def follow(self, data: bytes) -> int:
        """Follow further bytes; returns how many of them belong to this response. Raises Malformed."""
        at = 0
        if self._head is not None:
            at = self._follow_head(data)
            if self._head is not None or self.is_over:
                return at
        if self._is_chunked:
            return self._follow_chunks(data, at)
        if self._left is None:
            return len(data)
        taken = min(self._left, len(data) - at)
        self._left -= taken
        self.is_over = not self._left
        return at + taken

    def ends(self) -> bool:
        """Return whether the response is complete when the server closes its connection."""
        return self.is_over or (self._head is None and not self._is_chunked and self._left is None)

    def _follow_head(self, data: bytes) -> int:
        assert self._head is not None
        before = len(self._head)
        self._head += data[: MAX_HEAD_BYTES + 1]
        end = self._head.find(END, max(0, before - len(END)))
        if end < 0:
            if len(self._head) > MAX_HEAD_BYTES:
                raise Malformed
            return len(data)
        head = bytes(self._head[: end + 2])
        self._head = None
        status = STATUS.match(head)
        if status is None or status[1].startswith(b"1"):  # nobody asks the server to go on or to change the protocol
            raise Malformed
        self._is_chunked = CHUNKED.search(head) is not None
        length = LENGTH.search(head)
        if not self._is_chunked and length:
            self._left = int(length[1])
        elif not self._is_chunked:
            self.closes = True
        self.closes = self.closes or CLOSE.search(head) is not None
        self.is_over = self._left == 0 or status[1] in NO_BODY
        return end + len(END) - before

    def _follow_chunks(self, data: bytes, at: int) -> int:
        size = len(data)
        while at < size:
            if self._left:
                taken = min(self._left, size - at)
                self._left -= taken
                at += taken
                continue
            end = data.find(b"\n", at)
            if end < 0:
                self._line += data[at:]
                if len(self._line) > LONGEST_LINE:
                    raise Malformed
                return size
            line, self._line, at = self._line + data[at:end], b"", end + 1
            if self._is_last:
                if line in (b"\r", b""):  # else a trailer
                    self.is_over = True
                    return at
                continue
            try:
                count = int(line.partition(b";")[0], 16)
            except ValueError:
                raise Malformed from None
            self._is_last = count == 0
            self._left = count + 2 if count else 0
        return at
