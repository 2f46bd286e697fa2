# SPDX-License-Identifier: Apache-2.0
"""The responses of one request: sent as they are produced, or a single one kept until `execute` returns it.

Many senders with separate final flags crash tritonserver 2.51. All responses of a model are therefore sent under one
lock, with the final flag on the last response of a request.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from trtspec.core.errors import Overloaded
from trtspec.serving.triton.python_models.fields import request_parameters
from trtspec.serving.triton.python_models.interruptions import PARAMETER, VARIABLE, DrainWatcher, has_disconnected
from trtspec.serving.triton.python_models.tensors import Array, cancelled, failure, respond, shutting_down

DISCONNECTS = os.environ.get(VARIABLE, "")
REQUESTS_PER_PLACE = 2  # keeps the engine busy between requests


class RequestSlots:
    """Limits the concurrent requests of a multi-threaded model; others wait in the server's queue.

    That queue has the recipe's limit, beyond which the server rejects requests with its own status.
    """

    def __init__(self, max_batch_size: int) -> None:
        self.count = REQUESTS_PER_PLACE * max_batch_size
        self._free = threading.Semaphore(self.count)

    def hold(self, start: Callable[[], Future[Any]]) -> None:
        """Start a request once a slot is free; the slot is released when its future completes.

        Call it from `execute`, so that further requests fill the server's queue.
        """
        self._free.acquire()
        start().add_done_callback(lambda _: self._free.release())


class RequestLimit:
    """Limits the open requests of a model whose `execute` does not wait; further requests are rejected."""

    def __init__(self, max_batch_size: int, max_queue_size: int) -> None:
        self._max_queue_size = max_queue_size
        self._free = threading.Semaphore(REQUESTS_PER_PLACE * max_batch_size + max_queue_size)

    def __enter__(self) -> None:
        if not self._free.acquire(blocking=False):
            raise Overloaded(self._max_queue_size)

    def __exit__(self, *_: object) -> None:
        self._free.release()


class Responder:
    """Sends the responses of one request; `lock` is shared by all requests of the model."""

    def __init__(
        self,
        pb_utils: Any,
        request: Any,
        lock: threading.Lock,
        *,
        decoupled: bool,
        shutdown: DrainWatcher,
    ) -> None:
        self._pb_utils = pb_utils
        self._lock = lock
        self._sender = request.get_response_sender() if decoupled else None
        self._wanted = request.requested_output_names()
        self._client = request_parameters(request).get(PARAMETER)
        self._done = threading.Event()
        self._is_cancelled: Callable[[], bool] = (self._sender or request).is_cancelled
        self._own = threading.Lock()
        self._is_final = False
        self.response: Any = None
        self._shutdown = shutdown
        shutdown.add(self, self.send_shutdown)

    def is_cancelled(self) -> bool:
        """Return whether the client is gone or has its last response, after which the server must not be queried."""
        with self._own:
            return self._is_final or self._is_cancelled() or has_disconnected(DISCONNECTS, self._client)

    def send_tensors(self, make: Callable[[], list[tuple[str, Array]]], *, final: bool) -> None:
        """Send those tensors of `make()` that the request names."""
        self.send(respond(self._pb_utils, make, self._wanted), final=final)

    def send_failure(self, error: Exception) -> None:
        """Send an error as the last response."""
        self.send(failure(self._pb_utils, error), final=True)

    def send_cancelled(self) -> None:
        """Send the response for a disconnected client."""
        self.send(cancelled(self._pb_utils), final=True)

    def send_shutdown(self) -> None:
        """Send an error because the server shuts down; later output of the engine is discarded."""
        self.send(shutting_down(self._pb_utils), final=True)

    def send_end(self) -> None:
        """Mark the end of the responses without another one."""
        self.send(None, final=True)

    def send(self, response: Any, *, final: bool) -> None:
        """Send one response, unless the last was sent; keep it for `result` if the model is not decoupled."""
        with self._own:
            if self._is_final:
                return
            self._is_final = final
            self._send(response, final=final)

    def _send(self, response: Any, *, final: bool) -> None:
        flags = self._pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if final else 0
        self.response = response or self.response
        try:
            if self._sender is not None:
                with self._lock:
                    self._sender.send(response, flags=flags)
        finally:
            if final:
                self._shutdown.discard(self)
                self.abandon()

    def abandon(self) -> None:
        """Let `result` return, whether or not the last response was sent."""
        self._done.set()

    def result(self) -> Any:
        """Wait for the response and return it."""
        # Every request ends with a last response or `abandon`, also if its client disconnects.
        self._done.wait()  # unbounded: see above
        return self.response
