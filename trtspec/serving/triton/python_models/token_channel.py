# SPDX-License-Identifier: Apache-2.0
"""Token channels: one response with the new tokens of all requests of a client and an engine step.

A response costs Triton and the model's process about 0.3 ms, whatever it contains. A client with many streams therefore
opens a channel: a request with the parameter `trtspec_channel`, a random name, that is answered until the client
cancels it. Its other requests name the channel, and a number of their own in `trtspec_stream`. The channel's responses
have their new tokens, and each of them is answered once, at its end: with the tokens that the channel did not send and
all counts, or with an error. Cancellation and shutdown work as for every request. A request that names an unknown
channel is answered with ordinary streaming.

A channel's response has one tensor, `output_ids` [1, 1, n]: for each stream its number, the number of its new tokens,
and the tokens.

A client on the same machine gets the same values by a socket (`channel_socket`), which costs a hundredth of a response.
The values of stream CONTROL in a response are its states: the socket is open (LISTENS), and once the client has
connected, all further tokens come by the socket (MOVED). Tokens that the socket cannot take at once wait in the model's
process. A client that leaves a stream before its end writes the stream's number to the socket (int32). The model then
does not ask Triton for each request several times a second.

A request with the parameter `trtspec_counts` has its token and draft counts in each step, before the tokens.
"""

from __future__ import annotations

import re
import select
import socket
import threading
from array import array
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np

from trtspec.core.errors import TrtspecError
from trtspec.engine.generation.request import Stats
from trtspec.serving.triton.names import CHANNEL_PARAMETER, COUNTS_PARAMETER, STREAM_PARAMETER
from trtspec.serving.triton.python_models.channel_socket import VALUE_BYTES, accept, listen
from trtspec.serving.triton.python_models.fields import request_parameters
from trtspec.serving.triton.python_models.interruptions import CancellationWatcher, DrainWatcher, Registration
from trtspec.serving.triton.python_models.responses import Responder

CHANNEL_NAME = re.compile(r"[0-9a-f]{32}")
TOKENS = "output_ids"
MAX_CHANNELS = 64
STREAM_NUMBERS = 1 << 31  # from 0
CONTROL, LISTENS, MOVED = -1, 0, 1
PART_VALUES = 64  # of a step that are sent to a socket before the rest is there
READ_BYTES = 1 << 12
MAX_LEFT = 1 << 12  # numbers of streams that the client left; older ones have ended
WRITE_TIMEOUT_S = 60.0  # time in which a client must read something


COUNTS = 7  # values before the accepted tokens by position


def pack_counts(ids: Sequence[int], counts: Stats) -> tuple[int, ...]:
    """Return the values of a step with counts, which `unpack_counts` reads."""
    numbers = (counts.prompt_tokens, counts.new_tokens, counts.drafted, counts.accepted, counts.draft_steps)
    return (*numbers, len(counts.accepted_by_position), len(ids), *counts.accepted_by_position, *ids)


def unpack_counts(values: Sequence[int]) -> tuple[list[int], Stats]:
    """Return the tokens of one or several steps, and the counts after the last one."""
    ids: list[int] = []
    counts, at = Stats(), 0
    while at < len(values):
        prompt, new, drafted, accepted, draft_steps, positions, length = values[at : at + COUNTS]
        begin = at + COUNTS + positions
        by_position = tuple(values[at + COUNTS : begin])
        counts = Stats(prompt, new, drafted, accepted, accepted_by_position=by_position, draft_steps=draft_steps)
        at = begin + length
        ids += values[begin:at]
    return ids, counts


class TokenStream:
    """The way of one request's tokens into a channel, with the counts so far if it `has_counts`."""

    def __init__(self, channel: _Channel, number: int, *, has_counts: bool = False) -> None:
        self._channel, self._number, self._has_counts = channel, number, has_counts

    def add(self, ids: Sequence[int], counts: Stats) -> None:
        """Add new tokens to the channel's next response."""
        if ids:
            values = pack_counts(ids, counts) if self._has_counts else ids
            self._channel.add((self._number, len(values), *values))

    def has_left(self) -> bool | None:
        """Return True if the client has left this stream, and None if it cannot report that."""
        return self._channel.has_left(self._number)


class _Channel:
    """An open channel: the values that its client has not got yet, and the client's socket if it has one."""

    def __init__(self, responder: Responder) -> None:
        self.responder = responder
        self.watch: Registration | None = None
        self._values: list[int] = []
        self._lock, self._sending = threading.Lock(), threading.Lock()
        self._listener: socket.socket | None = None
        self._socket: socket.socket | None = None
        self._is_closed = False
        self._left: deque[int] = deque(maxlen=MAX_LEFT)
        self._left_raw = b""  # the beginning of a number

    def has_left(self, number: int) -> bool | None:
        """Return whether the client has left a stream; None without a socket by which it reports that."""
        with self._lock:
            if self._socket is None or self._is_closed:
                return None
            with suppress(OSError):  # nothing more has arrived
                while data := self._socket.recv(READ_BYTES):
                    data = self._left_raw + data
                    whole = len(data) // VALUE_BYTES * VALUE_BYTES
                    self._left.extend(memoryview(data)[:whole].cast("i"))
                    self._left_raw = data[whole:]
            return number in self._left

    def add(self, values: Sequence[int]) -> None:
        """Add values; a part of a step is sent immediately, so that both processes work at the same time."""
        with self._lock:
            self._values += values
            is_part = len(self._values) >= PART_VALUES and self._socket is not None
        if is_part:
            self.flush()

    def listen(self, name: str) -> None:
        """Open the channel's socket and announce it to the client."""
        self._listener = listen(name)
        if self._listener is not None:
            self._respond([CONTROL, 1, LISTENS])

    def flush(self) -> None:
        """Send what was added since the last call; if a thread is still sending earlier values, it sends these, too."""
        while self._values and self._sending.acquire(blocking=False):
            rest = b""
            try:
                if self._listener is not None:
                    self._move()
                if self._socket is None:
                    self._respond(self._taken())
                else:
                    rest = self._send(self._socket, array("i", self._taken()).tobytes())
            finally:
                if not rest:
                    self._sending.release()
            if rest:
                threading.Thread(target=self._send_rest, args=(rest,), name="token channel", daemon=True).start()
                return

    def close(self) -> None:
        self._is_closed = True
        for each in (self._listener, self._socket):
            if each is not None:
                each.close()

    def _taken(self) -> list[int]:
        with self._lock:
            values, self._values = self._values, []
        return values

    def _respond(self, values: list[int]) -> None:
        self.responder.send_tensors(lambda: [(TOKENS, np.array([[values]], np.int32))], final=False)

    def _move(self) -> None:
        """Accept the client's connection if it waits, and send the values to the socket from now on."""
        assert self._listener is not None
        self._socket = accept(self._listener)
        if self._socket is not None:
            self._respond([CONTROL, 1, MOVED])
            self._listener.close()
            self._listener = None

    def _send(self, to: socket.socket, raw: bytes) -> bytes:
        """Return what the socket did not take; all of it counts as taken if the client has left."""
        try:
            return raw[to.send(raw) :]
        except BlockingIOError:
            return raw
        except OSError:  # the watcher of departures closes the channel
            return b""

    def _send_rest(self, raw: bytes) -> None:
        """Send values to a client that reads slowly until it has got all of them."""
        to = self._socket
        assert to is not None
        poll = select.poll()
        try:
            poll.register(to, select.POLLOUT)
            while raw and not self._is_closed:
                if not poll.poll(1000 * WRITE_TIMEOUT_S):
                    self.close()  # the client, should it ever read again, notices the end
                raw = self._send(to, raw) or array("i", self._taken()).tobytes()
        except ValueError:  # the channel was closed before
            pass
        finally:
            self._sending.release()
        self.flush()


class TokenChannels:
    """The channels of one model; thread-safe."""

    def __init__(self, pb_utils: Any, lock: threading.Lock, shutdown: DrainWatcher) -> None:
        self._pb_utils, self._lock, self._shutdown = pb_utils, lock, shutdown
        self._open: dict[str, _Channel] = {}
        self._departures = CancellationWatcher()

    def opens(self, request: Any) -> bool:
        """Open a channel if the request asks for one, and return whether it did; errors are sent to the client."""
        parameters = request_parameters(request)
        if CHANNEL_PARAMETER not in parameters or STREAM_PARAMETER in parameters:
            return False
        responder = Responder(self._pb_utils, request, self._lock, decoupled=True, shutdown=self._shutdown)
        try:
            self._add(parameters[CHANNEL_PARAMETER], _Channel(responder))
        except TrtspecError as error:
            responder.send_failure(error)
        return True

    def stream(self, parameters: Mapping[str, Any]) -> TokenStream | None:
        """Return the stream that a request's parameters name; None without, or if the channel is not open."""
        number = parameters.get(STREAM_PARAMETER)
        channel = self._open.get(str(parameters.get(CHANNEL_PARAMETER)))
        if channel is None or not isinstance(number, int) or not 0 <= number < STREAM_NUMBERS:
            return None
        return TokenStream(channel, number, has_counts=parameters.get(COUNTS_PARAMETER) is True)

    def flush(self) -> None:
        """Send the new tokens of all streams; call it once for each step of the engine."""
        for channel in [*self._open.values()]:
            channel.flush()

    def close(self) -> None:
        """End all channels."""
        self._departures.close()
        for name in [*self._open]:
            self._drop(name)()

    def _add(self, name: object, channel: _Channel) -> None:
        if not isinstance(name, str) or not CHANNEL_NAME.fullmatch(name):
            raise TrtspecError(f"{CHANNEL_PARAMETER} is not 32 hexadecimal digits")
        if name in self._open:
            raise TrtspecError(f"this {CHANNEL_PARAMETER} is open already")
        if len(self._open) >= MAX_CHANNELS:
            raise TrtspecError(f"{MAX_CHANNELS} token channels are open already")
        channel.listen(name)
        self._open[name] = channel
        channel.watch = self._departures.watch(channel.responder.is_cancelled, self._drop(name))

    def _drop(self, name: str) -> Callable[[], None]:
        def drop() -> None:
            if (channel := self._open.pop(name, None)) is None:
                return
            if channel.watch is not None:
                channel.watch.close()
            channel.close()
            channel.responder.send_cancelled()

        return drop
