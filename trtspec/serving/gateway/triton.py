# SPDX-License-Identifier: Apache-2.0
"""The gateway's Triton client: one gRPC stream per completion, closed with its reader."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from trtspec.core.errors import Overloaded
from trtspec.serving.gateway.errors import RETRY_AFTER_S, ApiError, invalid_request, overloaded, shutting_down
from trtspec.serving.gateway.internal import internal_error
from trtspec.serving.gateway.tensors import BIAS, TritonModelInfo, read_outputs
from trtspec.serving.triton.python_models.error_ids import client_message, parse_error_id
from trtspec.serving.triton.python_models.errors import REFUSED, is_last, status_from_message
from trtspec.serving.triton.python_models.fields import TEXT_NAMES, rename_fields
from trtspec.serving.triton.python_models.grpc_client import IS_LAST, NO_LIMIT
from trtspec.serving.triton.python_models.tensors import SHUTTING_DOWN

READY_TIMEOUT_S = 1.0
READY_FOR_S = 0.25  # readiness is cached for this long
ENDS_S = 1.0  # wait for the server to end a stream after its last response
# the server is on this host
RECONNECT = [(f"grpc.{which}_reconnect_backoff_ms", 200) for which in ("initial", "min", "max")]

OPENAI_NAMES = {**TEXT_NAMES, "stop_words_list": "stop", BIAS: "logit_bias"}  # by the model's names
FULL = ("maximum queue size", "timeout expired", Overloaded.WORDS)

Code = grpc.StatusCode
log = logging.getLogger(__name__)


class TritonClient:
    """One model of a Triton server; create it in the running event loop."""

    def __init__(self, address: str, model: str, timeout_s: float) -> None:
        self._channel = grpc.aio.insecure_channel(address, [*NO_LIMIT, *RECONNECT])
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._name, self._timeout_s = model, timeout_s
        self._model: TritonModelInfo | None = None
        self._ready, self._asked_at = False, float("-inf")
        self._asking = asyncio.Lock()

    async def model(self) -> TritonModelInfo:
        """Return the model's inputs and outputs; raises ApiError if the server does not report them."""
        if self._model is None:
            request = service_pb2.ModelConfigRequest(name=self._name)
            try:
                response = await self._stub.ModelConfig(request, timeout=READY_TIMEOUT_S)
            except grpc.RpcError as error:
                raise _unavailable(_details(error)) from None
            self._model = TritonModelInfo.of(response.config)
        return self._model

    async def is_ready(self) -> bool:
        """Return whether the server reports the model as ready within READY_TIMEOUT_S."""
        async with self._asking:
            if time.monotonic() - self._asked_at > READY_FOR_S:
                self._ready = await self._ask_ready()
                self._asked_at = time.monotonic()
        return self._ready

    async def generate(self, request: Any) -> AsyncGenerator[tuple[Mapping[str, bytes], bool], None]:
        """Yield the tensors of each response and whether it is the last; raises ApiError.

        Closing the iterator cancels the request.
        """
        call = self._stub.ModelStreamInfer(timeout=self._timeout_s)
        answered = False
        try:
            await call.write(request)
            await call.done_writing()
            while (message := await call.read()) is not grpc.aio.EOF:
                answered = is_last(message, IS_LAST)
                if message.error_message:
                    raise _refused(message.error_message)
                yield read_outputs(message.infer_response), answered
                if answered:
                    return
            await self._explain(call)
        except grpc.RpcError as error:
            raise _failed(error.code(), _details(error)) from None
        finally:
            if answered:
                await _let_end(call)
            call.cancel()

    async def close(self) -> None:
        await self._channel.close()

    async def _explain(self, call: Any) -> None:
        """Raise the error of a stream that ended before its last response."""
        code, details = await call.code(), await call.details()
        raise _failed(code, details or "") if code != Code.OK else _broken()

    async def _ask_ready(self) -> bool:
        try:
            request = service_pb2.ModelReadyRequest(name=self._name)
            return bool((await self._stub.ModelReady(request, timeout=READY_TIMEOUT_S)).ready)
        except grpc.RpcError:
            return False


async def _let_end(call: Any) -> None:
    """Wait until the server ends a stream: a cancellation right after the last response may leave the stream open."""
    with suppress(asyncio.TimeoutError, grpc.RpcError):
        await asyncio.wait_for(call.read(), ENDS_S)


def _details(error: grpc.RpcError) -> str:
    return str(error.details() or error.code().name)


def _failed(code: grpc.StatusCode, details: str) -> ApiError:
    """Return the client's error for a gRPC status."""
    if code == Code.DEADLINE_EXCEEDED:
        return ApiError(504, "the request timed out", code="timeout")
    if code in (Code.RESOURCE_EXHAUSTED, Code.UNAVAILABLE):
        return _unavailable(details)
    if code in (Code.INVALID_ARGUMENT, Code.OUT_OF_RANGE, Code.UNIMPLEMENTED):
        return _refused(details)
    if code == Code.CANCELLED:
        return _broken()
    return _model_failed(details)


def _unavailable(details: str) -> ApiError:
    """Return a retryable error; the details from gRPC and Triton go to the log only."""
    if SHUTTING_DOWN in details:
        return shutting_down()
    if any(words in details for words in FULL):
        return overloaded("the model's queue is full; retry in a moment")
    log.warning("the model is unavailable: %s", details)
    return overloaded("the model is unavailable; retry in a moment")


def _refused(message: str) -> ApiError:
    """Return the client's error for a message without a gRPC status."""
    status = status_from_message(message)
    if status == "UNAVAILABLE":
        return _unavailable(message)
    if status == "CANCELLED":
        return _broken()
    if status != REFUSED:
        return _model_failed(message)
    unsupported = message.startswith(BIAS)  # the engine accepts the tensor but ignores it
    message = rename_fields(message.split("\n", 1)[0], OPENAI_NAMES)
    if unsupported:
        return invalid_request(message, "logit_bias", "unsupported_parameter")
    return invalid_request(message, code="refused_by_model")


def _model_failed(details: str) -> ApiError:
    """Return an error with the model's error id, or with a new id under which this process logs the message."""
    if fault := parse_error_id(details):
        message = client_message(fault, "the server's")
        return ApiError(500, f"the model failed: {message}", code="model_failed")
    return internal_error("the model failed", details, code="model_failed")


def _broken() -> ApiError:
    return ApiError(503, "the server ended the response early", code="broken", retry_after_s=RETRY_AFTER_S)
