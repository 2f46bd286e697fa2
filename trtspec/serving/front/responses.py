# SPDX-License-Identifier: Apache-2.0
"""Detection of the end of a server's response, so that the client's connection can be reused. Pure."""

from __future__ import annotations

import re

from trtspec.serving.front.requests import END, MAX_HEAD_BYTES

STATUS = re.compile(rb"HTTP/1\.[01] ([1-5][0-9][0-9])[ \r]")
LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]+)[ \t]*\r\n", re.IGNORECASE)
CHUNKED = re.compile(rb"\r\ntransfer-encoding:[ \t]*chunked[ \t]*\r\n", re.IGNORECASE)
CLOSE = re.compile(rb"\r\nconnection:[ \t]*close[ \t]*\r\n", re.IGNORECASE)
LONGEST_LINE = 1 << 10  # limit for a chunk-size line
NO_BODY = (b"204", b"304")


class MalformedResponse(Exception):
    """A response that violates HTTP/1.1."""


class UpstreamResponse:
    """Tracks the bytes of one response; `is_over` is True after the last one."""

    def __init__(self) -> None:
        self.is_over = False
        self.closes = False  # the connection closes after the response
        self._head: bytearray | None = bytearray()
        self._left: int | None = None  # bytes left of the body or chunk, or None until EOF
        self._is_chunked = self._is_last = False
        self._line = b""  # start of an incomplete chunk-size line

    def follow(self, data: bytes) -> int:
        """Track further bytes and return how many of them belong to this response; raises Malformed."""
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
        """Return whether the response is complete if the server closes its connection now."""
        return self.is_over or (self._head is None and not self._is_chunked and self._left is None)

    def _follow_head(self, data: bytes) -> int:
        assert self._head is not None
        before = len(self._head)
        self._head += data[: MAX_HEAD_BYTES + 1]
        end = self._head.find(END, max(0, before - len(END)))
        if end < 0:
            if len(self._head) > MAX_HEAD_BYTES:
                raise MalformedResponse
            return len(data)
        head = bytes(self._head[: end + 2])
        self._head = None
        status = STATUS.match(head)
        if status is None or status[1].startswith(b"1"):  # 1xx responses are never requested
            raise MalformedResponse
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
                    raise MalformedResponse
                return size
            line, self._line, at = self._line + data[at:end], b"", end + 1
            if self._is_last:
                if line in (b"\r", b""):  # otherwise it is a trailer
                    self.is_over = True
                    return at
                continue
            try:
                count = int(line.partition(b";")[0], 16)
            except ValueError:
                raise MalformedResponse from None
            self._is_last = count == 0
            self._left = count + 2 if count else 0
        return at
