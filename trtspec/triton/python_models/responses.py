# SPDX-License-Identifier: Apache-2.0
"""The responses of one request: sent as they come, or one kept until `execute` returns it.

Many senders with separate final flags crash tritonserver 2.51: all responses of a model leave under one lock, and the
final flag is set on the last response of a request.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from trtspec.triton.python_models.tensors import Array, cancelled, failure, respond

POLL_S = 0.1  # how often a waiting `execute` looks for cancellations


class Responder:
    """Answers one request of a model; `lock` is shared by all requests of the model."""

    def __init__(self, pb_utils: Any, request: Any, lock: threading.Lock, *, decoupled: bool) -> None:
        self._pb_utils = pb_utils
        self._lock = lock
        self._sender = request.get_response_sender() if decoupled else None
        self._wanted = request.requested_output_names()
        self._done = threading.Event()
        self.is_cancelled: Callable[[], bool] = (self._sender or request).is_cancelled
        self.response: Any = None

    def send_tensors(self, make: Callable[[], list[tuple[str, Array]]], *, final: bool) -> None:
        """Send those of the tensors that `make` returns which the request names."""
        self.send(respond(self._pb_utils, make, self._wanted), final=final)

    def send_failure(self, error: Exception) -> None:
        """Send an error as the last response."""
        self.send(failure(self._pb_utils, error), final=True)

    def send_cancelled(self) -> None:
        """Tell a client that left."""
        self.send(cancelled(self._pb_utils), final=True)

    def send(self, response: Any, *, final: bool) -> None:
        """Send one response; where only one may be sent, keep it for `result`."""
        flags = self._pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if final else 0
        self.response = response
        try:
            if self._sender is not None:
                with self._lock:
                    self._sender.send(response, flags=flags)
        finally:
            if final:
                self._done.set()

    def abandon(self) -> None:
        """Let `result` return although the last response was never sent."""
        self._done.set()

    def result(self, on_cancelled: Callable[[], None] = lambda: None) -> Any:
        """Return the response once there is one; `on_cancelled` is called while the client is gone."""
        while not self._done.wait(POLL_S):
            if self.is_cancelled():
                on_cancelled()
        return self.response
