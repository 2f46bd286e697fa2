# SPDX-License-Identifier: Apache-2.0
"""Streams that read responses as fast as they come, over HTTP events or gRPC, and the latency of each event.

Each stream asks for one text after the other until the time is over.
"""

from __future__ import annotations

import asyncio
import gc
import json
import re
import select
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt
from tritonclient.grpc import service_pb2_grpc

from trtspec.core.ports import LOOPBACK
from trtspec.serving.triton.python_models.grpc_client import infer_request

EVENT = b"data: {"
LAST_CHUNK = b"0\r\n\r\n"
END_S = 120.0
TEXT = re.compile(rb'"text(?:_output)?": ?("(?:[^"\\]|\\.)*")')
READ_BYTES = 1 << 18
READ_EVERY_S = 0.001
SO_TIMESTAMPNS = 35  # of Linux; Python's socket module does not name it
ARRIVED = struct.Struct("@qq")  # seconds and nanoseconds of the wall clock
CONTROL_BYTES = socket.CMSG_SPACE(ARRIVED.size)

Times = npt.NDArray[np.float64]
RequestFn = Callable[[int], bytes]  # of a text's number of tokens
RawText = list[tuple[float, bytes]]  # what arrived, and when
BodyFn = Callable[[int, int], dict[str, Any]]  # of a stream and a text's number of tokens


@dataclass(frozen=True)
class Load:
    """The requests of one round.

    Attributes:
        streams: texts at once.
        steps: steps of each text.
        tokens: tokens of each text.
        warmup_s, seconds: events count from `warmup_s` on, for `seconds`.
        times: the engine's times of emissions, [streams, steps] seconds.
        characters: length of the text until the end of each step, if latencies of merged events are wanted.
    """

    streams: int
    steps: int
    tokens: int
    warmup_s: float
    seconds: float
    times: Times
    characters: Times | None = None


@dataclass
class Received:
    """What the streams of one round received between the times `since` and `until` of the monotonic clock.

    Attributes:
        events: number of events.
        tokens: number of their tokens, if all events of a text have the same.
        first_s, other_s: seconds from emission to arrival of the first and of the other events of each text.
        merged: texts with another number of events than of steps.
        errors: responses other than complete texts.
        unread: merged texts whose latencies `read_merged` adds after the round.
    """

    since: float
    until: float
    events: int = 0
    tokens: float = 0.0
    first_s: list[float] = field(default_factory=list)
    other_s: list[float] = field(default_factory=list)
    merged: int = 0
    errors: list[str] = field(default_factory=list)
    unread: list[tuple[RawText, Times]] = field(default_factory=list)

    @classmethod
    def of(cls, load: Load) -> Received:
        since = time.monotonic() + load.warmup_s
        return cls(since, since + load.seconds)

    def add(self, arrivals: list[float], load: Load, stream: int, tokens: int, raw: RawText) -> None:
        """Add the times at which the events of one text of `tokens` tokens arrived, and all that arrived."""
        counted = sum(self.since <= at < self.until for at in arrivals)
        self.events += counted
        self.tokens += counted * tokens / max(len(arrivals), 1)
        steps = load.steps * tokens // load.tokens
        is_within = bool(arrivals) and self.since <= arrivals[0] and arrivals[-1] < self.until
        if len(arrivals) != steps:
            self.merged += 1
            if is_within and load.characters is not None:
                self.unread.append((raw, load.times[stream, :steps].copy()))
        elif is_within:
            self._wait(np.array(arrivals) - load.times[stream, :steps])

    def read_merged(self, load: Load) -> None:
        """Add the latencies of the steps in merged events, which are found by the lengths of the texts."""
        for raw, times in self.unread:
            self._wait(step_arrivals(raw, load)[: len(times)] - times)
        self.unread = []

    def _wait(self, waits: Times) -> None:
        self.first_s.append(float(waits[0]))
        self.other_s += waits[1:].tolist()


def step_arrivals(raw: RawText, load: Load) -> Times:
    """Return the time at which each step of a text has arrived completely."""
    assert load.characters is not None
    data = b"".join(part for _, part in raw)
    part_ends = np.cumsum([len(part) for _, part in raw])
    events = [(len(json.loads(found[1])), found.end()) for found in TEXT.finditer(data)]
    characters = np.cumsum([length for length, _ in events])
    times = np.array([now for now, _ in raw])[np.searchsorted(part_ends, [end for _, end in events])]
    ends = np.searchsorted(characters, load.characters[load.characters <= characters[-1]])
    return np.asarray(times[ends])


class EventStream:
    """One connection that sends a request again and again, once the response to the one before is complete.

    The first text is shorter, by another length for each stream, because texts of a server do not end all at once.
    """

    def __init__(self, port: int, request: RequestFn, load: Load, stream: int, received: Received) -> None:
        self._request, self._load, self._stream, self._received = request(load.tokens), load, stream, received
        self._tokens = first_tokens(load, stream)
        self._arrivals: list[float] = []
        self._raw: RawText = []
        self._tail = b""
        self.socket = socket.create_connection((LOOPBACK, port), timeout=END_S)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.socket.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        self.socket.setblocking(False)  # a request fits into the socket's buffer
        self.socket.sendall(request(self._tokens))

    def read(self, data: bytes, now: float) -> bool:
        """Take the bytes that arrived at the time `now`; return False if the connection is over."""
        if not self._arrivals and data.startswith(b"HTTP/1.1 ") and not data.startswith(b"HTTP/1.1 200"):
            self._received.errors.append(data[:300].decode(errors="replace"))
            return False
        if not data:
            self._received.errors.append("the connection ended within a text")
            return False
        if self._load.characters is not None:
            self._raw.append((now, data))
        data = self._tail + data
        self._tail = data[1 - len(EVENT) :]
        self._arrivals += [now] * data.count(EVENT)
        if data.endswith(LAST_CHUNK):
            self._received.add(self._arrivals, self._load, self._stream, self._tokens, self._raw)
            self._arrivals, self._raw, self._tail, self._tokens = [], [], b"", self._load.tokens
            if now >= self._received.until:
                return False
            self.socket.sendall(self._request)
        return True


def first_tokens(load: Load, stream: int) -> int:
    """Return the number of tokens of a stream's first text, which is a whole number of steps."""
    return max(1, load.steps * (stream + 1) // load.streams) * (load.tokens // load.steps)


def read_events(port: int, path: str, body: BodyFn, load: Load) -> Received:
    """Return what the streams receive from an HTTP server; `body(stream, tokens)` is the document of a request.

    What has arrived is read every READ_EVERY_S, so that most writes of the server do not wake this process: a wake-up
    takes about 10 us of the server's time on a virtual machine, and belongs to a reader on the same machine. The times
    of arrival are the kernel's.
    """
    received, poll = Received.of(load), select.epoll()
    streams: dict[int, EventStream] = {}
    for each in range(load.streams):

        def request(tokens: int, each: int = each) -> bytes:
            return post_request(port, path, body(each, tokens))

        stream = EventStream(port, request, load, each, received)
        streams[stream.socket.fileno()] = stream
        poll.register(stream.socket, select.EPOLLIN)
    gc.disable()  # a collection would delay the times of arrival
    while streams:
        ready = poll.poll(END_S)
        if not ready:
            raise TimeoutError(f"nothing arrived within {END_S:g} s")
        ahead_s = time.time() - time.monotonic()
        for file, _ in ready:
            data, arrived = receive(streams[file].socket)
            if not streams[file].read(data, arrived - ahead_s):
                streams.pop(file).socket.close()  # and the kernel forgets it
        time.sleep(READ_EVERY_S)
    gc.enable()
    received.read_merged(load)
    return received


def receive(connection: socket.socket) -> tuple[bytes, float]:
    """Return what has arrived, and when its last part did, in seconds of the wall clock."""
    data, control, _, _ = connection.recvmsg(READ_BYTES, CONTROL_BYTES)
    for _, kind, value in control:
        if kind == SO_TIMESTAMPNS:
            seconds, nanoseconds = ARRIVED.unpack(value)
            return data, seconds + nanoseconds / 1e9
    return data, time.time()  # the end of the connection has no time


def post_request(port: int, path: str, body: dict[str, Any]) -> bytes:
    """Return the bytes of an HTTP request with a JSON document."""
    raw = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: {LOOPBACK}:{port}\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(raw)}\r\n\r\n".encode() + raw


async def read_responses(port: int, model: str, inputs: Callable[[int], list[Any]], load: Load) -> Received:
    """Return what the streams receive from Triton over gRPC, one call for each text on one connection."""
    received = Received.of(load)
    async with grpc.aio.insecure_channel(f"{LOOPBACK}:{port}") as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)

        async def read(stream: int) -> None:
            request = infer_request(model, inputs(stream), ["output_ids", "sequence_length"])
            while time.monotonic() < received.until:
                call, arrivals = stub.ModelStreamInfer(), list[float]()
                await call.write(request)
                await call.done_writing()
                async for message in call:
                    if message.error_message:
                        received.errors.append(message.error_message)
                        return
                    arrivals.append(time.monotonic())
                received.add(arrivals, load, stream, load.tokens, [])

        reading = asyncio.gather(*(read(each) for each in range(load.streams)))
        await asyncio.wait_for(reading, load.warmup_s + load.seconds + END_S)
    return received
