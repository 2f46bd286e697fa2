# SPDX-License-Identifier: Apache-2.0
"""Base class of Triton models with one thread per request, and the wake-up of Triton's dynamic batcher.

With a bounded queue, Triton's batcher calls a model only while the model waits for work, and it is not notified when
the model becomes idle. A request that arrives during `execute` then waits for the next request or for half a second
(triton-inference-server/core, DynamicBatchScheduler::WaitForPayloadSlotAvailable and RateLimiter::PayloadSlotAvailable,
at r24.10 and in June 2026). The bound is needed to reject further requests with 503. Therefore, the model sends itself
a request shortly after `execute`, and answers it with an empty response.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from trtspec.core.errors import TrtspecError
from trtspec.serving.triton.python_models.grpc_client import LocalServerClient, infer_request
from trtspec.serving.triton.python_models.interruptions import CancellationWatcher, DrainWatcher, Registration
from trtspec.serving.triton.python_models.responses import REQUESTS_PER_PLACE, RequestCancelled, Responder
from trtspec.serving.triton.python_models.tensors import HeldTensors, RequestTensors, Settings

WAKEUP_DELAYS_S = (0.002, 0.01)  # the second wake-up is for requests that arrived while the first was executed
RETRY_S = 0.01  # retry interval: `execute` may not have returned to the server yet, and the wake-up then waits too
ENDS_S = 1.0


class SchedulerWakeup:
    """Sends wake-up requests to one model, which must run the body of its `execute` inside `behind`."""

    def __init__(self, server: LocalServerClient, model: str) -> None:
        self._server, self._model = server, model
        self._id = f"nudge-{secrets.token_hex(16)}"  # unguessable for clients
        self._executes = False
        self._wanted, self._began, self._closed = threading.Event(), threading.Event(), threading.Event()
        self._asking = ThreadPoolExecutor(4)
        self._thread = threading.Thread(target=self._run, name="nudge", daemon=True)
        self._thread.start()

    def is_wakeup(self, request: Any) -> bool:
        """Return True if a request is a wake-up, which is answered with an empty response."""
        return bool(request.request_id() == self._id)

    @contextmanager
    def behind(self, requests: Sequence[Any]) -> Iterator[None]:
        """Context manager that wakes the batcher shortly after its block.

        The wake-up is omitted if `execute` is called again before, or if all `requests` were wake-ups.
        """
        self._executes = True
        self._began.set()
        try:
            yield
        finally:
            self._executes = False
            if not all(self.is_wakeup(request) for request in requests):
                self._wanted.set()

    def close(self) -> None:
        """Stop sending wake-ups; call it before the server's channel is closed."""
        self._closed.set()
        self._wanted.set()
        self._thread.join(ENDS_S)
        self._asking.shutdown(wait=False, cancel_futures=True)

    def _run(self) -> None:
        while not self._closed.is_set():
            self._wanted.wait()  # unbounded: nothing to do until the next `execute`
            self._wanted.clear()
            for behind_s in WAKEUP_DELAYS_S:
                self._began.clear()
                if self._closed.wait(behind_s) or self._executes or self._began.is_set():
                    break
                self._wake()

    def _wake(self) -> None:
        """Send wake-up requests until `execute` is called, for one of them or for another request."""
        while not (self._executes or self._closed.is_set()):
            self._asking.submit(self._ask)
            if self._began.wait(RETRY_S):
                return

    def _ask(self) -> None:
        inputs = [("text_input", np.array([[b""]], object)), ("max_tokens", np.array([[0]], np.int32))]
        request = infer_request(self._model, inputs, ())
        request.id = self._id
        with suppress(TrtspecError):
            list(self._server.ask(request))


class ThreadedModel:
    """Base class of models that answer each request in a thread; Triton calls `execute` and `finalize` by name."""

    def begin(self, pb_utils: Any, args: dict[str, str], settings: Settings, server: LocalServerClient) -> None:
        """Start the threads at the end of `initialize`; `server` is the client for the models that do the work."""
        self.decoupled, self.inputs, self.is_nvidia = settings.decoupled, settings.inputs, settings.is_nvidia
        self.server = server
        self.departures = CancellationWatcher()
        self._pb_utils = pb_utils
        self._lock = threading.Lock()
        self._shutdown = DrainWatcher(args["model_repository"])
        slots = REQUESTS_PER_PLACE * settings.max_batch_size
        self._free, self._threads = threading.Semaphore(slots), ThreadPoolExecutor(slots)
        self._nudge = SchedulerWakeup(server, args["model_name"])

    def answering(self, inputs: HeldTensors, responder: Responder) -> Callable[[], None]:
        """Return the function that answers a request in a thread; it must send its errors as responses."""
        raise NotImplementedError

    def execute(self, requests: list[Any]) -> list[Any] | None:
        with self._nudge.behind(requests):
            responders = [self.start(request) for request in requests]
            return None if self.decoupled else [responder.result() for responder in responders]

    def finalize(self) -> None:
        self._nudge.close()
        self._threads.shutdown()
        self.departures.close()
        self.server.close()
        self._shutdown.close()

    def start(self, request: Any) -> Responder:
        """Start a thread for a request once a slot is free.

        Until then, further requests wait in the server's queue. It has the recipe's limit, beyond which the server
        rejects requests with its own status.
        """
        responder = Responder(self._pb_utils, request, self._lock, decoupled=self.decoupled, shutdown=self._shutdown)
        if self._nudge.is_wakeup(request):
            responder.send_tensors(list, final=True)
            return responder
        answer = self.answering(HeldTensors(RequestTensors(self._pb_utils, request), self.inputs), responder)
        self._free.acquire()
        self._threads.submit(answer).add_done_callback(lambda _: self._free.release())
        return responder

    @contextmanager
    def cancelling(self, responder: Responder, cancel: Callable[[], None]) -> Iterator[Registration]:
        """Context manager that calls `cancel` if the client disconnects; later errors become RequestCancelled."""
        watch = self.departures.watch(responder.is_cancelled, cancel)
        try:
            yield watch
        except Exception:
            watch.close()
            if watch.has_left:
                raise RequestCancelled from None
            raise
        finally:
            watch.close()
