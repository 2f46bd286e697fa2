# SPDX-License-Identifier: Apache-2.0
"""The requests that the proxy accepts, and the form in which it forwards them."""

from __future__ import annotations

import gzip
import random
import zlib
from contextlib import suppress

import pytest

from trtspec.core.http_hosts import host_rules
from trtspec.serving.front.http_messages import (
    MAX_BODY_BYTES,
    MAX_DEPTH,
    MAX_HEAD_BYTES,
    ChunkedBody,
    MalformedResponse,
    RequestRejected,
    UpstreamResponse,
    check_body,
    check_depth,
    check_incomplete_head,
    parse_head,
)

RULES = host_rules("127.0.0.1")
POST = b"POST /v2/models/ensemble/generate HTTP/1.1\r\nHost: localhost:8000"


def status_of(head: bytes) -> int:
    """Return the status with which a head is rejected, or 0 if it is accepted."""
    try:
        parse_head(head, RULES)
    except RequestRejected as refused:
        return refused.status
    return 0


def test_request_is_rewritten_with_one_content_length() -> None:
    head = (
        POST
        + b"\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\nConnection: keep-alive, X\r\nX-Own: a:b"
    )
    request = parse_head(head, RULES)
    assert request.length is None
    assert request.keeps
    assert request.is_generate
    assert request.render(b"{}") == (
        b"POST /v2/models/ensemble/generate HTTP/1.1\r\nHost: localhost:8000\r\nContent-Type: application/json\r\n"
        b"X-Own: a:b\r\nContent-Length: 2\r\n\r\n"
    )


def test_get_request_without_body_has_no_content_length() -> None:
    request = parse_head(b"GET /v2/health/ready HTTP/1.0\r\nHost: localhost", RULES)
    assert request.render(b"") == b"GET /v2/health/ready HTTP/1.0\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    assert not request.keeps


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (POST + b"\r\nContent-Length: 4\r\nTransfer-Encoding: chunked", 400),
        (POST + b"\r\nContent-Length: 4\r\nContent-Length: 4", 400),
        (POST + b"\r\nContent-Length: 4, 4", 400),
        (POST + b"\r\nContent-Length: +4", 400),
        (POST + b"\r\nContent-Length: 0x4", 400),
        (POST + b"\r\nContent-Length: -4", 400),
        (POST + b"\r\nContent-Length: 99999999999999999999", 400),
        (POST + b"\r\nContent-Length: 16777217", 413),
        (POST + b"\r\nContent-Length : 4", 400),
        (POST + b"\r\n Content-Length: 4", 400),
        (POST + b"\r\nContent-Length: 4\r\n folded", 400),
        (POST + b"\r\nContent\nLength: 4", 400),
        (POST + b"\r\nX: a\nTransfer-Encoding: chunked", 400),
        (POST + b"\r\nX: a\rb", 400),
        (POST + b"\r\nX: a\0b", 400),
        (POST + b"\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: identity", 400),
        (POST + b"\r\nTransfer-Encoding: gzip, chunked", 501),
        (POST + b"\r\nTransfer-Encoding: xchunked", 501),
        (POST.replace(b"1.1", b"1.0") + b"\r\nTransfer-Encoding: chunked", 400),
        (POST + b"\r\nHost: localhost", 400),
        (b"POST /v2 HTTP/1.1", 400),
        (b"POST http://localhost/v2 HTTP/1.1\r\nHost: localhost", 400),
        (b"POST //localhost/v2 HTTP/1.1\r\nHost: localhost", 400),
        (b"CONNECT localhost:80 HTTP/1.1\r\nHost: localhost", 400),
        (b"DELETE /v2 HTTP/1.1\r\nHost: localhost", 405),
        (b"GET /v2 HTTP/2.0\r\nHost: localhost", 505),
        (b"GET  /v2 HTTP/1.1\r\nHost: localhost", 400),
        (b"GET /v2 x HTTP/1.1\r\nHost: localhost", 400),
        (b"GET /v2\x80 HTTP/1.1\r\nHost: localhost", 400),
        (b"GET /v2#x HTTP/1.1\r\nHost: localhost", 400),
        (b"GET /" + b"x" * 8192 + b" HTTP/1.1\r\nHost: localhost", 431),
        (POST + b"\r\nA: b" * 300, 431),
        (POST + b"\r\nUpgrade: websocket", 501),
        (POST + b"\r\nExpect: something", 417),
        (POST + b"\r\nContent-Type: multipart/form-data; boundary=x", 415),
        (POST + b"\r\nContent-Encoding: br", 415),
        (POST + b"\r\nInference-Header-Content-Length: -5", 400),
        (POST + b"\r\nInference-Header-Content-Length: 5\r\nInference-Header-Content-Length: 6", 400),
    ],
)
def test_ambiguous_or_unsupported_head_is_rejected(head: bytes, status: int) -> None:
    assert status_of(head) == status


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (b"Host: evil.example", 421),
        (b"Host: localhost\r\nOrigin: http://evil.example", 403),
        (b"Host: localhost\r\nOrigin: null", 403),
        (b"Host: evil.example\r\nOrigin: http://evil.example", 421),
        (b"Host: localhost\r\nSec-Fetch-Site: cross-site", 403),
        (b"Host: localhost\r\nSec-Fetch-Site: none", 0),
        (b"Host: [::1]:8000", 0),
        (b"Host: 127.0.0.1:8000\r\nOrigin: http://127.0.0.1:8000", 0),
        (b"Host: localhost\r\nUpgrade: h2c\r\nConnection: Upgrade, HTTP2-Settings\r\nHTTP2-Settings: x", 0),
    ],
)
def test_cross_site_requests_are_rejected(headers: bytes, status: int) -> None:
    assert status_of(b"POST /v2/models/ensemble/generate HTTP/1.1\r\n" + headers) == status


def test_incomplete_head_is_rejected_if_oversized_or_malformed() -> None:
    check_incomplete_head(b"GET / HTTP/1.1\r\nHost: x\r\n", 0)
    with pytest.raises(RequestRejected, match="exceeds 65,536 bytes"):
        check_incomplete_head(b"x" * (MAX_HEAD_BYTES + 1), 0)
    with pytest.raises(RequestRejected, match="CR LF"):
        check_incomplete_head(b"GET / HTTP/1.1\nHost: x\n\n", 0)


def chunked(*chunks: bytes) -> bytes:
    return b"".join(b"%x\r\n%s\r\n" % (len(each), each) for each in (*chunks, b""))


def test_chunked_body_is_decoded_from_any_fragmentation() -> None:
    parts = (b"{", b'"a": ' * 3000, b"1}")
    for step in (1, 2, 3, 7, 100_000):
        data, chunks, buffer = chunked(*parts) + b"GET ", ChunkedBody(), bytearray()
        at = 0
        while buffer.extend(data[at : at + step]) or not chunks.take(buffer):
            at += step
            assert at < len(data)
        assert chunks.body == b"".join(parts)


@pytest.mark.parametrize(
    "data",
    [
        b"5\nhello\r\n0\r\n\r\n",
        b"5\r\nhello0\r\n\r\n",
        b"5;a=b\r\nhello\r\n0\r\n\r\n",
        b"-5\r\nhello\r\n",
        b"0x5\r\nhello\r\n",
        b"fffffffff\r\n",
        b"1000001\r\n",
        b"5\r\nhello\r\n0\r\nX: trailer\r\n\r\n",
        b"1\r\nx\r\n" * 65_537,
        b"x" * 30,
    ],
)
def test_malformed_or_excessive_chunks_are_rejected(data: bytes) -> None:
    with pytest.raises(RequestRejected):
        ChunkedBody().take(bytearray(data))


def test_form_body_is_rejected_but_json_with_form_content_type_is_accepted() -> None:
    form = parse_head(POST + b"\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 2", RULES)
    assert check_body(form, bytearray(b' {"a": 1}')) == b' {"a": 1}'
    assert b"form" not in form.render(b"{}")
    with pytest.raises(RequestRejected, match="forms are not supported"):
        check_body(form, bytearray(b"a=b"))


@pytest.mark.parametrize(("encoding", "compress"), [(b"gzip", gzip.compress), (b"deflate", zlib.compress)])
def test_compressed_body_is_decompressed_or_rejected(encoding: bytes, compress) -> None:
    request = parse_head(POST + b"\r\nContent-Encoding: " + encoding + b"\r\nContent-Length: 2", RULES)
    assert check_body(request, bytearray(compress(b'{"a": 1}'))) == b'{"a": 1}'
    assert b"Encoding" not in request.render(b"")
    for bad in (compress(bytes(MAX_BODY_BYTES + 1)), compress(b"{}")[:-1], compress(b"{}") + b"x", b"x"):
        with pytest.raises(RequestRejected):
            check_body(request, bytearray(bad))


@pytest.mark.parametrize(
    "body",
    [
        b"[" * (MAX_DEPTH + 1),
        b'{"a":' * 100_000,
        b'{"text_input": "]]]]", "p": ' + b"[" * 10_000 + b"]" * 10_000 + b"}",
        b'["\\"]", ' + b"[" * (MAX_DEPTH + 1),
        b"[],{}," * 100_000,
        b"{" + b'"a" : 1,' * 10_001 + b"}",
    ],
)
def test_json_that_would_crash_the_server_is_rejected(body: bytes) -> None:
    with pytest.raises(RequestRejected):
        check_depth(body)


@pytest.mark.parametrize(
    "body",
    [
        b'{"text_input": "' + b"[" * 100_000 + b'"}',
        b'{"text_input": "\\"' + b"[" * 100_000 + b'"}',
        b"[" + b"[1]," * 50_000 + b"[1]]",
        b'{"text_input": "' + b'\\"a\\": 1,' * 100_000 + b'"}',
        b"[" * MAX_DEPTH + b"]" * MAX_DEPTH,
        b'"' + b'\\"' * 4_000_000,
    ],
)
def test_brackets_in_strings_and_flat_lists_are_accepted(body: bytes) -> None:
    check_depth(body)


def test_binary_tensors_after_the_json_are_not_checked() -> None:
    check_depth(b"{}" + b"[" * 1000, 2)


RESPONSES = [
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked(b"data: x\n\n", b"y" * 5000),
    b"HTTP/1.1 204 No Content\r\n\r\n",
]


@pytest.mark.parametrize("response", RESPONSES)
@pytest.mark.parametrize("step", [1, 3, 100_000])
def test_response_end_is_detected(response: bytes, step: int) -> None:
    followed, taken = UpstreamResponse(), 0
    data = response + b"HTTP/1.1"
    for at in range(0, len(data), step):
        if followed.is_over:
            break
        taken += followed.follow(data[at : at + step])
    assert followed.is_over
    assert taken == len(response)


@pytest.mark.parametrize(
    "response",
    [
        b"SSH-2.0\r\n\r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"x" * 70_000,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_malformed_response_is_detected(response: bytes) -> None:
    with pytest.raises(MalformedResponse):
        UpstreamResponse().follow(response)


def test_response_without_length_ends_with_the_connection() -> None:
    followed = UpstreamResponse()
    followed.follow(b"HTTP/1.1 200 OK\r\n\r\nhello")
    assert not followed.is_over
    assert followed.ends()
    assert followed.closes


def test_parsers_accept_or_reject_any_mutated_bytes() -> None:
    """Random mutations of valid requests are either accepted or rejected."""
    chance, seeds = random.Random(0), [POST + b"\r\nContent-Length: 4\r\nX: y", *RESPONSES]
    for _ in range(20_000):
        data = bytearray(chance.choice(seeds))
        for _ in range(chance.randrange(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        status_of(bytes(data))
        with suppress(MalformedResponse):
            UpstreamResponse().follow(bytes(data))
