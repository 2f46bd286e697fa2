# SPDX-License-Identifier: Apache-2.0
"""The reader of a token channel in another model of the same server, such as `ensemble`.

One thread gives the new tokens and counts of all streams to their receivers. See `token_channel` for the protocol. A
model without channels, or one whose socket cannot be reached, sends the tokens as ordinary responses.
"""

from __future__ import annotations

import itertools
import secrets
import select
import socket
import threading
import time
import traceback
from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Any

import numpy as np

from trtspec.core.errors import TrtspecError
from trtspec.engine.generation.request import Stats
from trtspec.serving.triton.names import CHANNEL_PARAMETER, COUNTS_PARAMETER, STREAM_PARAMETER, TOKEN_CHANNELS
from trtspec.serving.triton.python_models.channel_socket import connect, read_values
from trtspec.serving.triton.python_models.grpc_client import (
    LocalServerClient,
    ModelError,
    ResponseStream,
    infer_request,
)
from trtspec.serving.triton.python_models.interruptions import PollingThread
from trtspec.serving.triton.python_models.token_channel import CONTROL, LISTENS, MOVED, STREAM_NUMBERS, unpack_counts

READ_BYTES = 1 << 18
IDLE_POLL_S = 1.0
REFUSED_FOR_S = 60.0  # time until a channel that the model did not open is tried again
OPENS_S = 5.0  # time for the model to open a channel
MISSING_S = 60.0  # time for tokens that the model has sent before a text's last response
INPUTS = [(name, np.array([[1]], np.int32)) for name in ("input_ids", "input_lengths", "request_output_len")]
ReceiveFn = Callable[[list[int], Stats], None]


class ReceivedStream:
    """One request's tokens; `receive` gets those of each step, in the reader's thread."""

    def __init__(self, number: int, receive: ReceiveFn) -> None:
        self.number = number
        self._receive = receive
        self._received = 0
        self._changed = threading.Condition()
        self._is_broken = False

    def put(self, values: list[int]) -> None:
        """Pass on the tokens of one or several steps at once, with the counts of the last step."""
        ids, counts = unpack_counts(values)
        self._receive(ids, counts)
        self.count(len(ids))

    def count(self, tokens: int) -> None:
        """Count tokens as received."""
        with self._changed:
            self._received += tokens
            self._changed.notify()

    def end(self) -> None:
        with self._changed:
            self._is_broken = True
            self._changed.notify()

    def wait_for(self, tokens: int) -> None:
        """Wait until this number of tokens was received; raises ModelError if the channel does not have them."""
        with self._changed:
            self._changed.wait_for(lambda: self._is_broken or self._received >= tokens, MISSING_S)
            if self._received < tokens:
                raise ModelError("the server ended the response early", "UNAVAILABLE")


class ChannelReader(PollingThread):
    """Reads the channel of one model, which it opens for the first stream; thread-safe.

    A channel without streams is closed after a while, because a server waits for open requests before it exits.
    """

    def __init__(self, server: LocalServerClient, model: str) -> None:
        self._server, self._model = server, model
        self._has_channels: bool | None = None  # unknown
        self._refused_at = float("-inf")
        self._open: _OpenChannel | None = None
        super().__init__("idle token channel", IDLE_POLL_S)

    def join(self, request: Any, receive: ReceiveFn) -> ReceivedStream | None:
        """Make a request send its tokens to `receive`; None if the model has no channel for them."""
        for _ in range(2):  # the first channel may have just been closed
            channel = self._opened()
            if channel is None or (stream := channel.join(request, receive)) is not None:
                return None if channel is None else stream
        return None

    def leave(self, stream: ReceivedStream, *, has_ended: bool) -> None:
        """Drop a stream's further tokens; the model is told at once if the stream has not ended."""
        channel = self._open
        if channel is not None:
            channel.leave(stream, has_ended=has_ended)

    def poll(self) -> None:
        """Close the channel if it had no stream at this poll and the one before."""
        with self._lock:
            if self._open is not None and self._open.is_idle():
                self._open.close()

    def close(self) -> None:
        super().close()
        with self._lock:
            self._has_channels = False
            if self._open is not None:
                self._open.close()

    def _opened(self) -> _OpenChannel | None:
        with self._lock:
            if self._has_channels is None:
                self._has_channels = self._server.model_parameter(self._model, TOKEN_CHANNELS) == "true"
            if not self._has_channels or time.monotonic() - self._refused_at < REFUSED_FOR_S:
                return None
            if self._open is None or self._open.is_over:
                self._open = _OpenChannel(self._server, self._model)
                if not self._open.is_ready.wait(OPENS_S) or self._open.is_over:
                    self._open.close()
                    self._refused_at = time.monotonic()
                    return None
            return self._open


class _OpenChannel:
    """A channel and the thread that reads it; `is_ready` is set once the model has opened it or refused to."""

    def __init__(self, server: LocalServerClient, model: str) -> None:
        self._name = secrets.token_hex(16)
        self._streams: dict[int, ReceivedStream] = {}
        self._numbers = itertools.count()
        self.is_ready = threading.Event()
        self.is_over = self._was_idle = False
        self._lock = threading.Lock()
        request = infer_request(model, INPUTS, ["output_ids"])
        request.parameters[CHANNEL_PARAMETER].string_param = self._name
        self._responses = server.ask(request, timeout_s=None)
        self._closed = threading.Event()
        self._connection: socket.socket | None = None  # once the model sends tokens by it
        threading.Thread(target=self._run, name="token channel", daemon=True).start()

    def join(self, request: Any, receive: ReceiveFn) -> ReceivedStream | None:
        """Return the stream of a request, None if the channel is over."""
        number = next(self._numbers) % STREAM_NUMBERS  # from several threads
        request.parameters[CHANNEL_PARAMETER].string_param = self._name
        request.parameters[STREAM_PARAMETER].int64_param = number
        request.parameters[COUNTS_PARAMETER].bool_param = True
        with self._lock:
            if self.is_over:
                return None
            self._was_idle = False
            stream = self._streams[number] = ReceivedStream(number, receive)
        return stream

    def is_idle(self) -> bool:
        """Return True, and end the channel, if it has no stream now and had none at the last call."""
        with self._lock:
            was_idle, self._was_idle = self._was_idle, not self._streams
            self.is_over = self.is_over or (was_idle and self._was_idle)
            return self.is_over

    def leave(self, stream: ReceivedStream, *, has_ended: bool) -> None:
        if self._streams.get(stream.number) is not stream:  # another channel has the same numbers
            return
        del self._streams[stream.number]
        connection = self._connection
        if not has_ended and connection is not None:
            with suppress(OSError):  # the model asks Triton after a while
                connection.send(array("i", [stream.number]))

    def close(self) -> None:
        self._closed.set()
        self._responses.close()

    def _run(self) -> None:
        try:
            connection = self._follow(self._responses)
            if connection is not None:
                with connection:
                    self._connection = connection
                    self._read(connection)
        except TrtspecError:  # the requests themselves fail too, with their own errors
            pass
        finally:
            with self._lock:
                self.is_over = True
            self.is_ready.set()
            self._responses.close()
            for stream in [*self._streams.values()]:
                stream.end()

    def _follow(self, responses: ResponseStream) -> socket.socket | None:
        """Deliver the tokens in responses until the model moves to the socket.

        Returns the socket's connection, None if the channel ends before.
        """
        connection = None
        for response, _ in responses:
            found, _ = read_values(response.raw_output_contents[0]) if response.raw_output_contents else ({}, 0)
            (state,) = found.pop(CONTROL, (None,))
            if state == LISTENS and (connection := connect(self._name)) is None:
                return None
            self.is_ready.set()
            self._deliver(found)
            if state == MOVED:
                return connection
        return None

    def _read(self, connection: socket.socket) -> None:
        """Deliver the tokens that arrive at the socket until the model closes it."""
        for data in _received(connection, self._closed):
            found, used = read_values(data)
            del data[:used]
            self._deliver(found)

    def _deliver(self, found: Mapping[int, list[int]]) -> None:
        for number, values in found.items():
            stream = self._streams.get(number)
            if stream is None:  # it was cancelled
                continue
            try:
                stream.put(values)
            except Exception:  # an error of one stream must not end the others
                traceback.print_exc()
                stream.end()


POLL_MS = 200


def _received(connection: socket.socket, closed: threading.Event) -> Iterator[bytearray]:
    """Yield the same buffer each time bytes are added to it, until the connection ends or `closed` is set."""
    poll, buffer = select.poll(), bytearray()
    poll.register(connection, select.POLLIN)
    while not closed.is_set():
        if not poll.poll(POLL_MS):
            continue
        data = connection.recv(READ_BYTES)
        if not data:
            return
        buffer += data
        yield buffer
