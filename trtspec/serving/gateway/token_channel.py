# SPDX-License-Identifier: Apache-2.0
"""The gateway's end of a token channel: one Triton request that receives the new tokens of all completions.

See trtspec/serving/triton/python_models/token_channel.py for the protocol.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import sys
import time
from array import array
from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeAlias

import grpc
import numpy as np

from trtspec.serving.triton.names import CHANNEL_PARAMETER, STREAM_PARAMETER
from trtspec.serving.triton.python_models.grpc_client import infer_request
from trtspec.serving.triton.python_models.responses import SHUTTING_DOWN

log = logging.getLogger(__name__)
STREAMS = 1 << 31
REFUSED_FOR_S = 60.0
HEAD_LEN = 2  # the number of a stream and the number of its tokens
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
        waits = self._waiter is not None and not self._waiter.done()
        pushed = waits and self._push is not None and self._push(ids)
        if not pushed:
            self._ids += ids
        if not pushed or self.received >= self.expected:
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
        self._next = (self._next + 1) % STREAMS
        request.parameters[CHANNEL_PARAMETER].string_param = self._name
        request.parameters[STREAM_PARAMETER].int64_param = self._next
        self._streams[self._next] = StreamInbox(self._next, push)
        return self._streams[self._next]

    def leave(self, inbox: StreamInbox) -> None:
        self._streams.pop(inbox.number, None)

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
                    self._deliver(contents[0])
            if message is not grpc.aio.EOF and SHUTTING_DOWN not in message.error_message:
                self._refused_at = time.monotonic()
                log.warning("the model ended its token channel: %s", message.error_message)
        except grpc.RpcError:
            pass  # the requests themselves fail too, with their own errors
        finally:
            self._call.cancel()
            if not self.is_refused:  # else the model sends the tokens in ordinary responses
                for inbox in self._streams.values():
                    inbox.end()

    def _deliver(self, raw: bytes) -> None:
        """Give each stream its tokens; `raw` has for each its number, their count and the tokens, all int32."""
        values, at = memoryview(raw).cast("i").tolist(), 0
        while at < len(values):
            begin = at + HEAD_LEN
            inbox, at = self._streams.get(values[at]), begin + values[at + 1]
            if inbox is not None:  # otherwise it was cancelled
                inbox.put(values[begin:at])
