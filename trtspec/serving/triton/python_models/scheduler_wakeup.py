# SPDX-License-Identifier: Apache-2.0
"""Has the server hand over what came while `execute` ran.

Triton's batcher asks a model with a bounded queue only while the model waits for work, and nothing tells it when that
is so again: a request that came during `execute` waits for the next one to come, or half a second
(triton-inference-server/core, DynamicBatchScheduler::WaitForPayloadSlotAvailable and RateLimiter::PayloadSlotAvailable,
at r24.10 and in June 2026). The bound is wanted: what goes beyond it gets 503. So a model sends a request to itself
a moment after `execute`, which is answered with nothing.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

from tritonclient.grpc import service_pb2

from trtspec.core.errors import TrtspecError
from trtspec.serving.triton.python_models.grpc_client import OwnServer

BEHIND_S = (0.002, 0.01)  # the second for what came while the model executed the first
AGAIN_S = 0.01  # where the server's thread was not back yet from `execute`: the nudge waits there as well
ENDS_S = 1.0


class Nudge:
    """Nudges the server for one model of texts, which calls `behind` in `execute`."""

    def __init__(self, server: OwnServer, model: str) -> None:
        self._server, self._model = server, model
        self._id = f"nudge-{secrets.token_hex(16)}"  # not for clients to send
        self._executes = False
        self._wanted, self._began, self._closed = threading.Event(), threading.Event(), threading.Event()
        self._asking = ThreadPoolExecutor(4)
        self._thread = threading.Thread(target=self._run, name="nudge", daemon=True)
        self._thread.start()

    def is_own(self, request: Any) -> bool:
        """Return whether a request is a nudge, to be answered with nothing."""
        return bool(request.request_id() == self._id)

    @contextmanager
    def behind(self, requests: Sequence[Any]) -> Iterator[None]:
        """Nudge the server a moment after this, unless the model executes again without; nudges alone want no other."""
        self._executes = True
        self._began.set()
        try:
            yield
        finally:
            self._executes = False
            if not all(self.is_own(request) for request in requests):
                self._wanted.set()

    def close(self) -> None:
        """End, before the server's channel is closed."""
        self._closed.set()
        self._wanted.set()
        self._thread.join(ENDS_S)
        self._asking.shutdown(wait=False, cancel_futures=True)

    def _run(self) -> None:
        while not self._closed.is_set():
            self._wanted.wait()  # unbounded: nothing came
            self._wanted.clear()
            for behind_s in BEHIND_S:
                self._began.clear()
                if self._closed.wait(behind_s) or self._executes or self._began.is_set():
                    break
                self._nudge()

    def _nudge(self) -> None:
        """Send requests until one of them, or any other, has come."""
        while not (self._executes or self._closed.is_set()):
            self._asking.submit(self._ask)
            if self._began.wait(AGAIN_S):
                return

    def _ask(self) -> None:
        with suppress(TrtspecError):
            list(self._server.ask(self._request()))

    def _request(self) -> Any:
        request = service_pb2.ModelInferRequest(model_name=self._model, id=self._id)
        for name, datatype, content in (("text_input", "BYTES", bytes(4)), ("max_tokens", "INT32", bytes(4))):
            request.inputs.add(name=name, datatype=datatype, shape=[1, 1])
            request.raw_input_contents.append(content)
        return request
