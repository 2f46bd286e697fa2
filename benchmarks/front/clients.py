# SPDX-License-Identifier: Apache-2.0
"""Streams that read responses as fast as they come, over HTTP events or gRPC, and the latency of each event.

Each stream asks for one text after the other until the time is over.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
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

Times = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Load:
    """The requests of one round.

    Attributes:
        streams: texts at once.
        steps: steps of each text.
        tokens: tokens of each text.
        warmup_s, seconds: events count from `warmup_s` on, for `seconds`.
        times: the engine's times of emissions, [streams, steps] seconds.
    """

    streams: int
    steps: int
    tokens: int
    warmup_s: float
    seconds: float
    times: Times


@dataclass
class Received:
    """What the streams of one round received between the times `since` and `until` of the monotonic clock.

    Attributes:
        events: number of events.
        first_s, other_s: seconds from emission to arrival of the first and of the other events of each text.
        merged: texts with another number of events than of steps, whose events have no latency.
        errors: responses other than complete texts.
    """

    since: float
    until: float
    events: int = 0
    first_s: list[float] = field(default_factory=list)
    other_s: list[float] = field(default_factory=list)
    merged: int = 0
    errors: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, load: Load) -> Received:
        since = time.monotonic() + load.warmup_s
        return cls(since, since + load.seconds)

    def add(self, arrivals: list[float], load: Load, stream: int) -> None:
        """Add the times at which the events of one text arrived."""
        self.events += sum(self.since <= at < self.until for at in arrivals)
        if len(arrivals) != load.steps:
            self.merged += 1
        elif self.since <= arrivals[0] and arrivals[-1] < self.until:
            waits = np.array(arrivals) - load.times[stream, : load.steps]
            self.first_s.append(float(waits[0]))
            self.other_s += waits[1:].tolist()


class EventStream(asyncio.Protocol):
    """One connection that sends the same request again once its response is complete."""

    def __init__(self, request: bytes, load: Load, stream: int, received: Received) -> None:
        self._request, self._load, self._stream, self._received = request, load, stream, received
        self._arrivals: list[float] = []
        self._tail = b""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic()
        if not self._arrivals and data.startswith(b"HTTP/1.1 ") and not data.startswith(b"HTTP/1.1 200"):
            self._received.errors.append(data[:300].decode(errors="replace"))
            self._transport.close()
            return
        data = self._tail + data
        self._tail = data[1 - len(EVENT) :]
        self._arrivals += [now] * data.count(EVENT)
        if data.endswith(LAST_CHUNK):
            self._received.add(self._arrivals, self._load, self._stream)
            self._arrivals, self._tail = [], b""
            if now < self._received.until:
                self._transport.write(self._request)
            else:
                self._transport.close()

    def connection_lost(self, error: Exception | None) -> None:
        if self._arrivals:
            self._received.errors.append(f"the connection ended within a text: {error}")
        if not self.done.done():
            self.done.set_result(None)


async def read_events(port: int, path: str, body: Callable[[int], dict[str, Any]], load: Load) -> Received:
    """Return what the streams receive from an HTTP server; `body(stream)` is the document of a request."""
    received, loop = Received.of(load), asyncio.get_running_loop()
    streams = [EventStream(post_request(port, path, body(each)), load, each, received) for each in range(load.streams)]
    for stream in streams:
        made = partial(_given, stream)
        connecting = loop.create_connection(made, LOOPBACK, port)  # unbounded: the next line has the limit
        await asyncio.wait_for(connecting, END_S)
    await asyncio.wait_for(asyncio.gather(*(each.done for each in streams)), load.warmup_s + load.seconds + END_S)
    return received


def _given(stream: EventStream) -> EventStream:
    return stream


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
                received.add(arrivals, load, stream)

        reading = asyncio.gather(*(read(each) for each in range(load.streams)))
        await asyncio.wait_for(reading, load.warmup_s + load.seconds + END_S)
    return received
