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
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from trtspec.core.errors import TrtspecError
from trtspec.serving.triton.names import CHANNEL_PARAMETER, STREAM_PARAMETER
from trtspec.serving.triton.python_models.fields import request_parameters
from trtspec.serving.triton.python_models.interruptions import CancellationWatcher, DrainWatcher, Registration
from trtspec.serving.triton.python_models.responses import Responder

CHANNEL_NAME = re.compile(r"[0-9a-f]{32}")
TOKENS = "output_ids"
MAX_CHANNELS = 64
MAX_STREAM = (1 << 31) - 1


class TokenStream:
    """The way of one request's tokens into a channel."""

    def __init__(self, channel: _Channel, number: int) -> None:
        self._channel, self._number = channel, number

    def add(self, ids: Sequence[int]) -> None:
        """Add new tokens to the channel's next response."""
        if ids:
            self._channel.add((self._number, len(ids), *ids))


class _Channel:
    """An open channel: the values of its next response."""

    def __init__(self, responder: Responder) -> None:
        self.responder = responder
        self.watch: Registration | None = None
        self._values: list[int] = []
        self._lock = threading.Lock()

    def add(self, values: Sequence[int]) -> None:
        with self._lock:
            self._values += values

    def flush(self) -> None:
        """Send what was added since the last call."""
        with self._lock:
            values, self._values = self._values, []
        if values:
            self.responder.send_tensors(lambda: [(TOKENS, np.array([[values]], np.int32))], final=False)


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
        if channel is None or not isinstance(number, int) or not 0 <= number <= MAX_STREAM:
            return None
        return TokenStream(channel, number)

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
        self._open[name] = channel
        channel.watch = self._departures.watch(channel.responder.is_cancelled, self._drop(name))

    def _drop(self, name: str) -> Callable[[], None]:
        def drop() -> None:
            if (channel := self._open.pop(name, None)) is None:
                return
            if channel.watch is not None:
                channel.watch.close()
            channel.responder.send_cancelled()

        return drop
