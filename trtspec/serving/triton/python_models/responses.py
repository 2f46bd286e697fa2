# SPDX-License-Identifier: Apache-2.0
"""The responses of one request: sent as they are produced, or a single one returned by `execute`.

Many senders with separate final flags crash tritonserver 2.51. All responses of a model are therefore sent under one
lock, with the final flag on the last response of a request.

Internal errors may contain paths, addresses or other users' texts, and do not help a client. The client receives only
an id, under which the exception is logged.
"""

from __future__ import annotations

import os
import re
import secrets
import threading
import traceback
from collections.abc import Callable, Container
from typing import Any, TypeAlias

from trtspec.core.errors import Overloaded, TrtspecError
from trtspec.serving.triton.python_models.fields import request_parameters
from trtspec.serving.triton.python_models.interruptions import (
    CLIENT_PARAMETER,
    DISCONNECTS_VARIABLE,
    DrainWatcher,
    has_disconnected,
)
from trtspec.serving.triton.python_models.tensors import Array, RequestTensors

DISCONNECTS = os.environ.get(DISCONNECTS_VARIABLE, "")
REQUESTS_PER_PLACE = 2  # keeps the engine busy between requests
REFUSED, INTERNAL = "INVALID_ARG", "INTERNAL"  # Triton's names of error codes
SHUTTING_DOWN = "the server is shutting down"
ERROR_ID = re.compile(r"internal error ([0-9a-f]{12})\b")

NamedTensors: TypeAlias = list[tuple[str, Array]]


class RequestCancelled(Exception):
    """Raised if the client of a request has disconnected."""


class RequestLimit:
    """Context manager that limits the open requests of a model; raises Overloaded if the limit is reached."""

    def __init__(self, max_batch_size: int, max_queue_size: int) -> None:
        self._max_queue_size = max_queue_size
        self._free = threading.Semaphore(REQUESTS_PER_PLACE * max_batch_size + max_queue_size)

    def __enter__(self) -> None:
        if not self._free.acquire(blocking=False):
            raise Overloaded(self._max_queue_size)

    def __exit__(self, *_: object) -> None:
        self._free.release()


class Responder:
    """Sends the responses of one request; `lock` is shared by all requests of the model.

    Attributes:
        wanted: the names of the requested outputs.
        response: the only response of a model that is not decoupled.
    """

    def __init__(
        self, pb_utils: Any, request: Any, lock: threading.Lock, *, decoupled: bool, shutdown: DrainWatcher
    ) -> None:
        self.wanted = request.requested_output_names()
        self.response: Any = None
        self._pb_utils, self._lock = pb_utils, lock
        self._sender = request.get_response_sender() if decoupled else None
        self._is_cancelled: Callable[[], bool] = (self._sender or request).is_cancelled
        self._client = request_parameters(request).get(CLIENT_PARAMETER)
        self._own, self._is_final, self._done = threading.Lock(), False, threading.Event()
        self._shutdown = shutdown
        shutdown.add(self, self.send_shutdown)

    def is_cancelled(self) -> bool:
        """Return True if the client left or has its last response; the server must not be queried afterwards."""
        with self._own:
            return self._is_final or self._is_cancelled() or has_disconnected(DISCONNECTS, self._client)

    def send_tensors(self, make: Callable[[], NamedTensors], *, final: bool) -> None:
        """Send the requested tensors among those of `make()`; an exception in `make` is sent as an error."""
        self.send(respond(self._pb_utils, make, self.wanted), final=final)

    def send_failure(self, error: Exception) -> None:
        """Send an error response for an exception as the last response of the request."""
        self.send(failure(self._pb_utils, error), final=True)

    def send_cancelled(self) -> None:
        self.send(_error(self._pb_utils, "the request was cancelled", "CANCELLED"), final=True)

    def send_shutdown(self) -> None:
        """Send a shutdown error as the last response; later output of the engine is discarded."""
        self.send(_error(self._pb_utils, SHUTTING_DOWN, "UNAVAILABLE"), final=True)

    def send(self, response: Any, *, final: bool) -> None:
        """Send a response unless the last one was sent; with None, end the request without a further response."""
        with self._own:
            if self._is_final:
                return
            self._is_final = final
            self.response = response or self.response
            try:
                if self._sender is not None:
                    with self._lock:
                        flags = self._pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if final else 0
                        self._sender.send(response, flags=flags)
            finally:
                if final:
                    self._shutdown.discard(self)
                    self.abandon()

    def abandon(self) -> None:
        """Make `result` return, even if the last response was not sent."""
        self._done.set()

    def result(self) -> Any:
        """Wait until the request has ended and return its response."""
        # Every request ends with a last response or `abandon`, also if its client disconnects.
        self._done.wait()  # unbounded: see above
        return self.response


def respond(pb_utils: Any, make: Callable[[], NamedTensors], wanted: Container[str]) -> Any:
    """Return a response with the tensors of `make()` whose names are in `wanted`, the requested outputs.

    Sending any other tensor crashes the stub of tritonserver before 2.53 on Python 3.12 and newer, which frees it
    without holding Python's lock (python_backend#390). An exception in `make` becomes the error of this request only.
    """
    try:
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, array) for name, array in make() if name in wanted])
    except Exception as error:
        return failure(pb_utils, error)


def respond_each(pb_utils: Any, requests: list[Any], make: Callable[[RequestTensors], NamedTensors]) -> list[Any]:
    """Return a response for each request, with the tensors that `make` returns for its inputs."""

    def answer(request: Any) -> Any:
        return respond(pb_utils, lambda: make(RequestTensors(pb_utils, request)), request.requested_output_names())

    return [answer(request) for request in requests]


def failure(pb_utils: Any, error: Exception) -> Any:
    """Return an error response; details of an internal error are logged under a new error id.

    If the message already contains the error id of another model, that id is used and nothing is logged.
    """
    status = getattr(error, "status", REFUSED) if isinstance(error, TrtspecError) else INTERNAL
    if status != INTERNAL:
        return _error(pb_utils, str(error), status)
    fault = parse_error_id(str(error))
    if fault is None:
        fault = new_error_id()
        pb_utils.Logger.log_error(f"internal error {fault}: {''.join(traceback.format_exception(error))}")
    return _error(pb_utils, client_message(fault, "the server's"), INTERNAL)


def _error(pb_utils: Any, message: str, status: str) -> Any:
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(message, getattr(pb_utils.TritonError, status)))


def new_error_id() -> str:
    return secrets.token_hex(6)


def client_message(fault: str, log: str) -> str:
    """Return the message of an internal error for the client; `log` names the log, such as "the server's"."""
    return f"internal error {fault}: see {log} log under this id"


def parse_error_id(message: str) -> str | None:
    """Return the error id in a message of another process, or None."""
    found = ERROR_ID.search(message)
    return found and found[1]
