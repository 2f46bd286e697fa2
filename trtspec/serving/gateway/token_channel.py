# SPDX-License-Identifier: Apache-2.0
"""The gateway's end of a token channel: one Triton request that receives the new tokens of all completions.

See trtspec/serving/triton/python_models/token_channel.py for the protocol. If the model's process is on this machine,
the tokens arrive at a socket of the event loop, and the Triton request only reports the channel's end.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import sys
import time
from array import array
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeAlias

import grpc
import numpy as np

from trtspec.serving.triton.names import CHANNEL_PARAMETER, STREAM_PARAMETER
from trtspec.serving.triton.python_models.channel_socket import connect, read_values
from trtspec.serving.triton.python_models.grpc_client import infer_request
from trtspec.serving.triton.python_models.responses import SHUTTING_DOWN
from trtspec.serving.triton.python_models.token_channel import CONTROL, LISTENS, MOVED, STREAM_NUMBERS

log = logging.getLogger(__name__)
REFUSED_FOR_S = 60.0
PushFn: TypeAlias = "Callable[[list[int]], bool]"
INPUTS = [(name, np.array([[1]], np.int32)) for name in ("input_ids", "input_lengths", "request_output_len")]


class StreamInbox:
    """The tokens of one completion that its reader has not taken yet.

    `push` gets the tokens at once while the reader waits for some. It returns False to leave them to the reader.

    Attributes:
        received: number of tokens so far.
        expected: number of tokens at which `wait` returns even if `push` took all of them.
        is_broken: True if no more will come.
    """

    def __init__(self, number: int, push: PushFn | None = None) -> None:
        self.number = number
        self.received, self.expected = 0, sys.maxsize
        self._push = push
        self.is_broken = False
        self._ids: list[int] = []
        self._waiter: asyncio.Future[None] | None = None

    def put(self, ids: list[int]) -> None:
        self.received += len(ids)
        waiter, push = self._waiter, self._push
        if push is None or waiter is None or waiter.done() or not push(ids):
            self._ids += ids
        elif self.received < self.expected:
            return
        self.wake()

    def take(self) -> bytes:
        """Return the tokens since the last call as raw int32."""
        ids, self._ids = self._ids, []
        return array("i", ids).tobytes()

    def end(self) -> None:
        """Record that no more tokens will come."""
        self.is_broken = True
        self.wake()

    def wake(self) -> None:
        """Let `wait` return."""
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def wait(self) -> None:
        """Wait for tokens, or until `wake` or `end` is called; only one task may wait."""
        if not self._ids and not self.is_broken:
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter  # unbounded: the end of the request's own stream wakes it
            finally:
                self._waiter = None


class TokenChannel:
    """An open channel of one model; create it inside the running event loop."""

    def __init__(self, stub: Any, model: str) -> None:
        self._name = secrets.token_hex(16)
        self._streams: dict[int, StreamInbox] = {}
        self._next = 0
        request = infer_request(model, INPUTS, ["output_ids"])
        request.parameters[CHANNEL_PARAMETER].string_param = self._name
        self._call = stub.ModelStreamInfer()
        self._socket: socket.socket | None = None
        self._transport: asyncio.WriteTransport | None = None
        self._refused_at = float("-inf")
        self._task = asyncio.ensure_future(self._read(request))

    @property
    def is_open(self) -> bool:
        return not self._task.done()

    @property
    def is_refused(self) -> bool:
        """Return True for REFUSED_FOR_S after the model answered with an error."""
        return time.monotonic() - self._refused_at < REFUSED_FOR_S

    def join(self, request: Any, push: PushFn | None = None) -> StreamInbox:
        """Make a request send its new tokens to this channel; `push` may take them (see `StreamInbox`)."""
        self._next = (self._next + 1) % STREAM_NUMBERS
        request.parameters[CHANNEL_PARAMETER].string_param = self._name
        request.parameters[STREAM_PARAMETER].int64_param = self._next
        self._streams[self._next] = StreamInbox(self._next, push)
        return self._streams[self._next]

    def leave(self, inbox: StreamInbox, *, has_ended: bool) -> None:
        """Drop a stream's further tokens; the model is told at once if the stream has not ended."""
        self._streams.pop(inbox.number, None)
        if not has_ended and self._transport is not None:
            self._transport.write(array("i", [inbox.number]).tobytes())

    async def close(self) -> None:
        self._task.cancel()
        with suppress(asyncio.CancelledError):
            await self._task

    async def _read(self, request: Any) -> None:
        try:
            await self._call.write(request)
            await self._call.done_writing()
            while (message := await self._call.read()) is not grpc.aio.EOF and not message.error_message:
                if contents := message.infer_response.raw_output_contents:
                    await self._receive(contents[0])
            if message is not grpc.aio.EOF and SHUTTING_DOWN not in message.error_message:
                self._refused_at = time.monotonic()
                log.warning("the model ended its token channel: %s", message.error_message)
        except grpc.RpcError:
            pass  # the requests themselves fail too, with their own errors
        finally:
            self._call.cancel()
            self._close_socket()
            if not self.is_refused:  # else the model sends the tokens in ordinary responses
                for inbox in self._streams.values():
                    inbox.end()

    async def _receive(self, raw: bytes) -> None:
        """Give the streams the tokens of a response, or follow the model to the channel's socket."""
        found, _ = read_values(raw)
        (state,) = found.pop(CONTROL, (None,))
        self._deliver(found)
        if state == LISTENS:
            self._socket = connect(self._name)
        elif state == MOVED and self._socket is not None:
            opening = asyncio.get_running_loop().create_unix_connection(self._reader, sock=self._socket)
            self._transport, _ = await opening  # unbounded: the socket is connected
            self._socket = None

    def _reader(self) -> SocketReader:
        return SocketReader(self._deliver, self._task.cancel)

    def _close_socket(self) -> None:
        for each in (self._socket, self._transport):
            if each is not None:
                each.close()

    def _deliver(self, found: Mapping[int, list[int]]) -> None:
        """Give each stream its tokens."""
        for stream, ids in found.items():
            inbox = self._streams.get(stream)
            if inbox is None:  # it was cancelled
                continue
            try:
                inbox.put(ids)
            except Exception:  # an error of one stream must not end the others
                log.exception("the tokens of a stream cannot be used")
                inbox.end()


class SocketReader(asyncio.Protocol):
    """Gives the tokens of a channel's socket to `deliver`, and calls `end` if the model's process closes it."""

    def __init__(self, deliver: Callable[[Mapping[int, list[int]]], None], end: Callable[[], object]) -> None:
        self._deliver, self._end = deliver, end
        self._rest = b""

    def data_received(self, data: bytes) -> None:
        data = self._rest + data
        found, used = read_values(data)
        self._rest = data[used:]
        self._deliver(found)

    def connection_lost(self, error: Exception | None) -> None:
        self._end()
