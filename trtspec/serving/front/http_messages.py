# SPDX-License-Identifier: Apache-2.0
"""HTTP messages: validation of requests before they are forwarded, and detection of the ends of responses.

This module uses no sockets and no clock. tritonserver's HTTP library crashes on forms of some megabytes, on bodies in
many small chunks, and on JSON nested some ten thousand levels deep, and it does not limit the size of a body. The proxy
therefore reads each request completely, parses it strictly within limits, and rewrites it with a single Content-Length.
It detects the end of a response, so that the client's connection can be reused.
"""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import dataclass, field
from urllib.parse import unquote_to_bytes

from trtspec.core.http_hosts import HostRules

MAX_HEAD_BYTES = 64 << 10
MAX_TARGET_BYTES = 8 << 10
MAX_HEADERS = 256
MAX_BODY_BYTES = 16 << 20
MAX_CHUNKS = 1 << 16
MAX_CHUNK_LINE = 18  # hex digits of a chunk size and the line end
MAX_DEPTH = 200  # of JSON
MAX_KEYS = 10_000  # of JSON; the server takes seconds to parse some hundred thousand
MAX_BRACKETS = 200_000  # of JSON; with more than MAX_DEPTH, they are scanned one by one

END = b"\r\n\r\n"
BARE_END = re.compile(rb"(?<!\r)\n\r?\n")
REQUEST_LINE = re.compile(rb"([A-Z]{1,16}) (/[!-~]*) HTTP/1\.([01])")
HEADER = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):([\t -~\x80-\xff]*)")
LENGTH = re.compile(rb"[0-9]{1,10}")
GENERATE = re.compile(rb"/v2/models/[^/]+(?:/versions/[0-9]+)?/generate")
CHUNK_SIZE = re.compile(rb"[0-9A-Fa-f]{1,8}")
STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)', re.DOTALL)  # an unterminated string extends to the end
NO_BRACKET = bytes(byte for byte in range(256) if byte not in b"[]{}")

FORM = b"application/x-www-form-urlencoded"
MULTIPART = b"multipart/"
DROPPED = frozenset(  # hop-by-hop headers, and headers that the proxy replaces
    b"connection keep-alive proxy-connection te trailer transfer-encoding upgrade expect content-length http2-settings "
    b"content-encoding".split()
)
ONCE = (b"content-length", b"transfer-encoding", b"content-type", b"content-encoding", b"expect")
JSON_LENGTH = b"inference-header-content-length"
CONTENT_TYPE_HINT = "send it with Content-Type: application/json"
REASONS = {
    400: "Bad Request",
    403: "Forbidden",
    405: "Method Not Allowed",
    408: "Request Timeout",
    413: "Content Too Large",
    415: "Unsupported Media Type",
    417: "Expectation Failed",
    421: "Misdirected Request",
    431: "Request Header Fields Too Large",
    501: "Not Implemented",
    502: "Bad Gateway",
    503: "Service Unavailable",
    505: "HTTP Version Not Supported",
}
RETRY_AFTER_S = 1


class RequestRejected(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message

    def render(self) -> bytes:
        """Return the HTTP error response; it closes the connection, because the rest of the request is not trusted."""
        body = json.dumps({"error": self.message}).encode()
        more = {405: "Allow: GET, POST\r\n", 503: f"Retry-After: {RETRY_AFTER_S}\r\n"}.get(self.status, "")
        head = (
            f"HTTP/1.1 {self.status} {REASONS[self.status]}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n{more}Connection: close\r\n\r\n"
        )
        return head.encode() + body


@dataclass
class ProxyRequest:
    """The head of an accepted request.

    Attributes:
        head: the head to forward, without its final empty line and without Content-Length.
        length: bytes of the body, or None for a chunked one.
        has_length: true if a Content-Length is forwarded, even if it is 0.
        keeps: true if the connection stays open after the response.
        expects: true if the client waits for "100 Continue".
        is_form: true if the Content-Type denotes a form, which curl also sends with JSON.
        encoding: "gzip", "deflate" or "".
        json_length: bytes of JSON at the start of the body, or None if all of it is JSON.
        is_generate: true for Triton's `generate`, during which the server does not detect that the client disconnects.
    """

    head: bytes
    length: int | None
    has_length: bool
    keeps: bool
    expects: bool = False
    is_form: bool = False
    encoding: str = ""
    json_length: int | None = None
    is_generate: bool = False

    def render(self, body: bytes | bytearray) -> bytes:
        """Return the request head to forward, with the Content-Length of `body`."""
        length = b"Content-Length: %d\r\n" % len(body) if self.has_length else b""
        return b"%s%s\r\n" % (self.head, length)


def check_incomplete_head(received: bytes | bytearray, checked: int) -> None:
    """Raise RequestRejected if the received part of a head is too long or has wrong line ends.

    The first `checked` bytes were checked before.
    """
    if len(received) > MAX_HEAD_BYTES:
        raise RequestRejected(431, f"the request head exceeds {MAX_HEAD_BYTES:,} bytes")
    if BARE_END.search(received, max(0, checked - len(END))):
        raise RequestRejected(400, "request lines must end with CR LF")


def parse_head(head: bytes, rules: HostRules, methods: tuple[bytes, ...] = (b"GET", b"POST")) -> ProxyRequest:
    """Parse a request head without its final empty line; raises RequestRejected if it is not acceptable."""
    lines = head.split(b"\r\n")
    line = REQUEST_LINE.fullmatch(lines[0])
    if line is None:
        raise _bad_request_line(lines[0])
    method, target, minor = line[1], line[2], line[3]
    if method not in methods:
        raise RequestRejected(405, f"{method.decode()} is not supported here")
    if len(target) > MAX_TARGET_BYTES:
        raise RequestRejected(431, f"the request path exceeds {MAX_TARGET_BYTES:,} bytes")
    if target.startswith(b"//") or b"#" in target:
        raise RequestRejected(400, "the request path must begin with a single slash and not have a fragment")
    if len(lines) > MAX_HEADERS + 1:
        raise RequestRejected(431, f"the request has more than {MAX_HEADERS} headers")
    headers: dict[bytes, list[bytes]] = {}
    forwarded = [b"%s %s HTTP/1.%s" % (method, target, minor)]
    for each in lines[1:]:
        header = HEADER.fullmatch(each)
        if header is None:
            raise RequestRejected(400, "a header of the request is malformed")
        name = header[1].lower()
        headers.setdefault(name, []).append(header[2].strip(b" \t"))
        if name not in DROPPED:
            forwarded.append(each)
    if repeated := next((name for name in ONCE if len(headers.get(name, ())) > 1), None):
        raise RequestRejected(400, f"the request has several headers {repeated.decode()}")
    _check_sender(headers, rules, method)
    request = _request(method, minor, headers, forwarded)
    path = target.partition(b"?")[0]
    request.is_generate = GENERATE.fullmatch(unquote_to_bytes(path) if b"%" in path else path) is not None
    return request


def _request(method: bytes, minor: bytes, headers: dict[bytes, list[bytes]], forwarded: list[bytes]) -> ProxyRequest:
    length = _length(minor, headers)
    kind = headers.get(b"content-type", [b""])[0].lower()
    if MULTIPART in kind:
        raise RequestRejected(415, f"forms are not supported; {CONTENT_TYPE_HINT}")
    is_form = FORM in kind
    if is_form:
        forwarded = [each for each in forwarded if not each.lower().startswith(b"content-type:")]
    expects = headers.get(b"expect", [b""])[0].lower()
    if expects not in (b"", b"100-continue"):
        raise RequestRejected(417, "the only supported expectation is 100-continue")
    # some clients offer h2c with each request but do not need it
    if {value.lower() for value in headers.get(b"upgrade", ())} - {b"h2c"}:
        raise RequestRejected(501, "protocols other than HTTP/1.1 are not supported")
    connection = {word.strip().lower() for value in headers.get(b"connection", ()) for word in value.split(b",")}
    keeps = minor == b"1" and b"close" not in connection
    if not keeps:
        forwarded.append(b"Connection: close")
    return ProxyRequest(
        b"\r\n".join(forwarded) + b"\r\n",
        length,
        has_length=method != b"GET" or length != 0,
        keeps=keeps,
        expects=expects != b"" and minor == b"1",
        is_form=is_form,
        encoding=_encoding(headers),
        json_length=_json_length(headers),
    )


def _bad_request_line(line: bytes) -> RequestRejected:
    words = line.split(b" ")
    if len(words) == 3 and words[2].startswith(b"HTTP/") and words[2] not in (b"HTTP/1.0", b"HTTP/1.1"):
        return RequestRejected(505, "the supported versions are HTTP/1.1 and HTTP/1.0")
    if len(words) == 3 and not words[1].startswith(b"/"):
        return RequestRejected(400, "the request target must be a path; this server does not proxy to other hosts")
    return RequestRejected(400, "the first line of the request is malformed")


def _check_sender(headers: dict[bytes, list[bytes]], rules: HostRules, method: bytes) -> None:
    """Raise RequestRejected for cross-site requests, including DNS rebinding: a foreign name for this machine."""
    hosts, origins = ([value.decode("latin-1") for value in headers.get(name, ())] for name in (b"host", b"origin"))
    if (refusal := rules.refusal(hosts, origins)) is not None:
        raise RequestRejected(refusal.status, refusal.message)
    site = {value.lower() for value in headers.get(b"sec-fetch-site", ())}
    if method != b"GET" and not origins and site - {b"same-origin", b"none"}:
        raise RequestRejected(403, "cross-site requests are not allowed")


def _length(minor: bytes, headers: dict[bytes, list[bytes]]) -> int | None:
    """Return the body's length in bytes, None for a chunked body; raises RequestRejected for invalid headers."""
    encoding, length = headers.get(b"transfer-encoding"), headers.get(b"content-length")
    if encoding is not None:
        if length is not None:
            raise RequestRejected(400, "the request has both Content-Length and Transfer-Encoding")
        if minor == b"0":
            raise RequestRejected(400, "HTTP/1.0 does not support Transfer-Encoding")
        if encoding[0].lower() != b"chunked":
            raise RequestRejected(501, "the only supported Transfer-Encoding is chunked")
        return None
    if length is None:
        return 0
    if LENGTH.fullmatch(length[0]) is None:
        raise RequestRejected(400, "the Content-Length is not a number")
    count = int(length[0])
    if count > MAX_BODY_BYTES:
        raise _too_large()
    return count


def _too_large() -> RequestRejected:
    return RequestRejected(413, f"the request body exceeds {MAX_BODY_BYTES:,} bytes")


def _encoding(headers: dict[bytes, list[bytes]]) -> str:
    encoding = headers.get(b"content-encoding", [b"identity"])[0].lower().decode("latin-1")
    if encoding not in ("identity", "gzip", "deflate"):
        raise RequestRejected(415, "the supported encodings of a body are gzip, deflate and identity")
    return "" if encoding == "identity" else encoding


def _json_length(headers: dict[bytes, list[bytes]]) -> int | None:
    lengths = headers.get(JSON_LENGTH, ())
    if not lengths:
        return None
    if len(lengths) > 1 or LENGTH.fullmatch(lengths[0]) is None:
        raise RequestRejected(400, "the Inference-Header-Content-Length is not a number")
    return int(lengths[0])


@dataclass
class ChunkedBody:
    """Incremental decoder of a chunked request body."""

    body: bytearray = field(default_factory=bytearray)
    _left: int = 0  # bytes left of the current chunk, including its line end
    _count: int = 0
    _is_last: bool = False

    def take(self, buffer: bytearray) -> bool:
        """Decode and remove bytes of `buffer`; return True at the end of the body, raise RequestRejected if invalid."""
        at = 0
        try:
            while True:
                if self._left:
                    at = self._take_chunk(buffer, at)
                    if self._left:
                        return False
                end = buffer.find(b"\r\n", at, at + MAX_CHUNK_LINE)
                if end < 0:
                    if len(buffer) - at >= MAX_CHUNK_LINE or (self._is_last and len(buffer) - at >= 2):
                        raise RequestRejected(400, "a chunk of the body is malformed")
                    return False
                line, at = buffer[at:end], end + 2
                if self._is_last:
                    if line:
                        raise RequestRejected(400, "trailers after the body are not supported")
                    return True
                self._begin(line)
        finally:
            del buffer[:at]

    def _take_chunk(self, buffer: bytearray, at: int) -> int:
        """Append the available bytes of the current chunk, from position `at`; return the next position."""
        data = max(0, min(self._left - 2, len(buffer) - at))
        self.body += memoryview(buffer)[at : at + data]
        at += data
        self._left -= data
        if self._left <= 2 and len(buffer) - at >= self._left:
            if buffer[at : at + 2] != b"\r\n":
                raise RequestRejected(400, "a chunk of the body is longer than its size")
            at += 2
            self._left = 0
        return at

    def _begin(self, line: bytearray) -> None:
        if CHUNK_SIZE.fullmatch(line) is None:
            raise RequestRejected(400, "the size of a chunk is malformed")
        size, self._count = int(line, 16), self._count + 1
        if len(self.body) + size > MAX_BODY_BYTES:
            raise _too_large()
        if self._count > MAX_CHUNKS:
            raise RequestRejected(413, f"the body has more than {MAX_CHUNKS:,} chunks")
        self._is_last = size == 0
        self._left = size + 2 if size else 0


def check_body(request: ProxyRequest, body: bytearray) -> bytes | bytearray:
    """Return the decompressed body to forward; raises RequestRejected if it would be unsafe for the server."""
    content = _decoded(body, request.encoding) if request.encoding else body
    if request.is_form and content and content[:64].lstrip()[:1] != b"{":
        raise RequestRejected(415, f"forms are not supported; {CONTENT_TYPE_HINT}")
    if request.json_length is not None and request.json_length > len(content):
        raise RequestRejected(400, "the Inference-Header-Content-Length is larger than the body")
    if content:
        check_depth(content, request.json_length)
    return content


def check_depth(content: bytes | bytearray, length: int | None = None) -> None:
    """Raise RequestRejected if the JSON in the first `length` bytes is too large or too deep for the server."""
    brackets_at_most = content.count(b"[", 0, length) + content.count(b"{", 0, length)
    if brackets_at_most <= MAX_DEPTH and content.count(b":", 0, length) <= MAX_KEYS:
        return
    part = STRING.sub(b"", content if length is None else content[:length])
    if part.count(b":") > MAX_KEYS:
        raise RequestRejected(400, f"JSON with more than {MAX_KEYS:,} keys is not supported")
    brackets = part.translate(None, NO_BRACKET)
    if len(brackets) > MAX_BRACKETS:
        raise RequestRejected(400, f"JSON with more than {MAX_BRACKETS // 2:,} lists and objects is not supported")
    depth = 0
    for bracket in brackets:
        if bracket in b"[{":
            depth += 1
            if depth > MAX_DEPTH:
                raise RequestRejected(400, f"JSON that is nested more than {MAX_DEPTH} levels deep is not supported")
        else:
            depth -= 1


def _decoded(body: bytearray, encoding: str) -> bytes:
    """Decompress a body; raises RequestRejected if it is invalid or its content exceeds MAX_BODY_BYTES."""
    reader = zlib.decompressobj(31 if encoding == "gzip" else 15)
    try:
        content = reader.decompress(body, MAX_BODY_BYTES + 1)
    except zlib.error:
        raise RequestRejected(400, f"the body is not valid {encoding}") from None
    if len(content) > MAX_BODY_BYTES:
        raise _too_large()
    if not reader.eof or reader.unused_data:
        raise RequestRejected(400, f"the body is not valid {encoding}")
    return content


STATUS = re.compile(rb"HTTP/1\.[01] ([1-5][0-9][0-9])[ \r]")
CONTENT_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]+)[ \t]*\r\n", re.IGNORECASE)
CHUNKED = re.compile(rb"\r\ntransfer-encoding:[ \t]*chunked[ \t]*\r\n", re.IGNORECASE)
CLOSE = re.compile(rb"\r\nconnection:[ \t]*close[ \t]*\r\n", re.IGNORECASE)
LONGEST_LINE = 1 << 10  # limit for a chunk-size line
NO_BODY = (b"204", b"304")


class MalformedResponse(Exception):
    """A response that violates HTTP/1.1."""


class UpstreamResponse:
    """Incremental parser of one server response that detects its end; `is_over` is then True."""

    def __init__(self) -> None:
        self.is_over = False
        self.closes = False  # the connection closes after the response
        self._head: bytearray | None = bytearray()
        self._left: int | None = None  # bytes left of the body or chunk, or None if the body ends with the connection
        self._is_chunked = self._is_last = False
        self._line = b""  # start of an incomplete chunk-size line

    def follow(self, data: bytes) -> int:
        """Parse further bytes; return how many belong to this response. Raises MalformedResponse."""
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
        """Return True if the response is complete when the server closes the connection now."""
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
        length = CONTENT_LENGTH.search(head)
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
