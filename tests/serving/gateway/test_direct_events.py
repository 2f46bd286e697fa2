# SPDX-License-Identifier: Apache-2.0
"""Events that the gateway writes without a task: slow readers, clients that leave, and characters in several tokens."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from tests.serving.gateway.running import RunningGateway, serve_gateway, wait_until
from tests.serving.gateway.scripted import TIMEOUT_S, Scripted, final, scripted
from tests.serving.triton.artifact import make_tokenizer
from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.engine.generation.text import TextPieces
from trtspec.serving.gateway.config import GatewayConfig, GatewayLimits
from trtspec.serving.gateway.generation import ChatFormat, CompletionFormat, Delta, TokenGeneration
from trtspec.serving.gateway.parameters import read_parameters

FAST = 63
WRITE_TIMEOUT_S = 0.5


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer with one token per byte."""
    return make_tokenizer(tmp_path_factory.mktemp("bytes") / "tokenizer")


class Reader:
    """A client with a small receive buffer that reads the events of its stream when it is told to."""

    def __init__(self, port: int, max_tokens: int, buffer: int = 1 << 16, **more: Any) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        self._socket.settimeout(TIMEOUT_S)
        self._socket.connect(("127.0.0.1", port))
        asked = {"model": "m", "prompt": [1, 2], "max_tokens": max_tokens, "stream": True, "temperature": 0, **more}
        body = json.dumps(asked).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n"
        self._socket.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + body)
        self._data = b""

    def read(self, text: str) -> None:
        """Read until the events have this text; fails if they have another one."""
        while len(found := self.text()) < len(text):
            part = self._socket.recv(1 << 16)
            assert part, self._data[-300:]
            self._data += part
        assert found == text

    def end(self) -> None:
        """Read until the end of the stream."""
        while b"data: [DONE]" not in self._data:
            part = self._socket.recv(1 << 16)
            assert part, self._data[-300:]
            self._data += part

    def error(self) -> Any:
        """Return the error of the stream."""
        (line,) = [each for each in self._data.split(b"\r\n") if each.startswith(b'data: {"error"')]
        return json.loads(line[6:])["error"]

    def is_closed(self) -> bool:
        """Read what has arrived; return whether the connection ends then, or the timeout passes."""
        try:
            while self._socket.recv(1 << 16):
                pass
        except ConnectionResetError:
            return True
        except TimeoutError:
            return False
        return True

    def text(self) -> str:
        lines = self._data.split(b"\r\n")
        events = [json.loads(line[6:]) for line in lines if line.startswith(b"data: {") and line.endswith(b"\n\n")]
        return "".join(choice["text"] for event in events for choice in event["choices"])

    def close(self) -> None:
        self._socket.close()


class Texts:
    """The texts of a scripted server, which end when the test says so; streams are numbered in their order."""

    def __init__(self, server: Scripted) -> None:
        self._server, self.streams = server, list[int]()
        self._made: dict[int, int] = {}
        self._last = ""
        self._over = threading.Event()
        server.text = self._answer

    def deliver(self, stream: int, text: str) -> None:
        ids = [byte - 32 for byte in text.encode()]  # the first token is '!', id 1
        self._made[stream] = self._made.get(stream, 0) + len(ids)
        self._server.deliver(stream, *ids)

    def deliver_ids(self, stream: int, *ids: int) -> None:
        self._server.deliver(stream, *ids)

    def end(self, text: str = "") -> None:
        """End all texts, with the last response's text."""
        self._last = self._last or text
        self._over.set()

    def _answer(self, stream: int) -> Iterator[Any]:
        self.streams.append(stream)
        assert self._over.wait(TIMEOUT_S)
        ids = [byte - 32 for byte in self._last.encode()]
        yield final(*ids, total=self._made.get(stream, 0) + len(ids))


@contextmanager
def gateway(tokenizer: Path, streams: int, stall_s: float = TIMEOUT_S) -> Iterator[tuple[Texts, RunningGateway]]:
    limits = GatewayLimits(write_timeout_s=WRITE_TIMEOUT_S, max_texts=streams, stall_s=stall_s, drain_s=2.0)
    with scripted(streams) as (server, address):
        config = GatewayConfig(address, 0, "m", "tensorrt_llm", str(tokenizer), 1 << 20, 4000, limits=limits)
        texts = Texts(server)
        try:
            with serve_gateway(config) as entry:
                yield texts, entry
        finally:
            texts.end()


def open_stream(
    texts: Texts, entry: RunningGateway, stack: ExitStack, buffer: int = 1 << 16, **more: Any
) -> tuple[Reader, int]:
    """Return a reader and the number of its stream, whose response has begun with the text "a"."""
    count = len(texts.streams)
    reader = Reader(entry.config.port, 1 << 19, buffer, **more)
    stack.callback(reader.close)
    wait_until(lambda: len(texts.streams) > count)
    texts.deliver(texts.streams[-1], "a")
    reader.read("a")
    return reader, texts.streams[-1]


def test_slow_reader_does_not_delay_others_and_is_cancelled(tokenizer: Path, caplog: pytest.LogCaptureFixture) -> None:
    with gateway(tokenizer, FAST + 1) as (texts, entry), ExitStack() as stack:
        slow_reader, slow = open_stream(texts, entry, stack, buffer=1 << 12)
        fast = [open_stream(texts, entry, stack) for _ in range(FAST)]
        for _ in range(12):  # until no buffer takes more, and beyond
            texts.deliver(slow, "s" * 40_000)
            for _, stream in fast:
                texts.deliver(stream, "f")
        for reader, _ in fast:
            reader.read("a" + "f" * 12)
        wait_until(lambda: entry.metric('trtspec_openai_broken_streams_total{reason="slow_client"}') == 1)
        for _, stream in fast:
            texts.deliver(stream, "g")
        for reader, _ in fast:
            reader.read("a" + "f" * 12 + "g")
        assert entry.metric("trtspec_openai_texts_in_flight") == FAST
        assert slow_reader.is_closed()
        assert not caplog.messages


def test_reader_that_stops_before_the_last_event_is_cancelled(tokenizer: Path) -> None:
    with gateway(tokenizer, 1) as (texts, entry), ExitStack() as stack:
        reader, _ = open_stream(texts, entry, stack, buffer=1 << 12)
        texts.end("s" * 400_000)  # the last but one event, which no buffer takes
        wait_until(lambda: entry.metric('trtspec_openai_broken_streams_total{reason="slow_client"}') == 1)
        wait_until(lambda: entry.metric("trtspec_openai_requests_in_flight") == 0)
        assert reader.is_closed()


def test_reader_that_pauses_gets_every_token_in_order(tokenizer: Path) -> None:
    with gateway(tokenizer, 1) as (texts, entry), ExitStack() as stack:
        reader, stream = open_stream(texts, entry, stack, buffer=1 << 12)
        expected = "a"
        for number in range(300):
            part = f"<{number}>" * 200
            expected += part
            texts.deliver(stream, part)
            if number % 60 == 59:
                reader.read(expected)  # the gateway has stopped writing meanwhile
        texts.end()
        reader.end()
        assert reader.text() == expected


def test_client_that_leaves_within_its_text_ends_it_alone(tokenizer: Path) -> None:
    with gateway(tokenizer, 2) as (texts, entry), ExitStack() as stack:
        leaving, left = open_stream(texts, entry, stack)
        staying, stream = open_stream(texts, entry, stack)
        texts.deliver(left, "b")
        leaving.read("ab")
        leaving.close()
        texts.deliver(left, "c")
        texts.deliver(stream, "b")
        wait_until(lambda: entry.metric('trtspec_openai_broken_streams_total{reason="client_left"}') == 1)
        texts.deliver(left, "d")
        texts.deliver(stream, "c")
        texts.end()
        staying.end()
        assert staying.text() == "abc"
        assert entry.metric("trtspec_openai_texts_in_flight") == 0


def test_tokens_that_cannot_be_decoded_end_their_stream_alone(
    tokenizer: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with gateway(tokenizer, 2) as (texts, entry), ExitStack() as stack:
        failing, bad = open_stream(texts, entry, stack, temperature=1)  # which is not resumed
        other, stream = open_stream(texts, entry, stack)
        texts.deliver_ids(bad, -7)  # the tokenizers library takes no negative ids
        texts.deliver(stream, "bc")
        other.read("abc")
        failing.end()
        assert failing.error()["code"] == "broken"
        texts.deliver(stream, "d")
        other.read("abcd")
        assert "the tokens of a stream cannot be used" in caplog.messages


@pytest.mark.parametrize("choices", [1, 2])
def test_tokens_without_an_event_are_not_a_stall(tokenizer: Path, choices: int) -> None:
    with gateway(tokenizer, choices, stall_s=0.5) as (texts, entry), ExitStack() as stack:
        reader, stream = open_stream(texts, entry, stack, stop=["b" * 99], n=choices)
        for _ in range(10):
            texts.deliver(stream, "b")  # may begin the stop text
            time.sleep(0.12)
        texts.deliver(stream, "c")
        reader.read("a" + 10 * "b" + "c")


TEXT = "na\u00efve \U0001f642 \u5317\u4eac END of it"


@pytest.mark.parametrize("stop", [[], ["END"], ["\u4eac E"]])
def test_text_is_the_same_for_any_two_divisions_of_its_tokens(tokenizer: Path, stop: list[str]) -> None:
    bytewise = Tokenizer(tokenizer)
    pieces, ids = TextPieces(bytewise), bytewise.encode(TEXT, False)
    asked = read_parameters({"model": "m", "prompt": "x", "max_tokens": 100, "stop": stop}, chat=False)

    def shown(places: tuple[int, ...]) -> str:
        """Return the text of parts that end at the given places; they are pushed, and the last is a response."""
        state, text, begun = TokenGeneration(asked, (1,), bytewise, pieces), "", 0
        for place in places:
            delta = state.take_ids(ids[begun:place])
            begun = place
            text += delta if isinstance(delta, str) else delta.text
            if isinstance(delta, Delta) and delta.finish_reason:
                return text
        raw = b"".join(token.to_bytes(4, "little") for token in ids[begun:])
        return text + state.take({"output_ids": raw}, last=True).text

    expected = TEXT.split(stop[0], maxsplit=1)[0] if stop else TEXT
    assert {shown(places) for places in combinations(range(len(ids) + 1), 2)} == {expected}
    assert shown(tuple(range(len(ids)))) == expected


@pytest.mark.parametrize("kind", [CompletionFormat, ChatFormat])
@pytest.mark.parametrize("include_usage", [False, True])
def test_event_of_a_text_equals_the_chunk_of_its_delta(kind: type[CompletionFormat], include_usage: bool) -> None:
    form = kind('m"%s{}\u00e9', texts_a_prompt=1, include_usage=include_usage, draft_len=0, fingerprint="trtspec-1")
    render = form.text_chunk(0)
    for text in ("a", '"\\\n\x00\x7f', "\u5317\U0001f642", "\ud83d", "%d {0}"):
        assert render(text) == form.chunk(0, Delta(text), first=False)
