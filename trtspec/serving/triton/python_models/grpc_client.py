# SPDX-License-Identifier: Apache-2.0
"""A gRPC client with which a Python model calls other models of the same server, and their errors.

Requests use the server's gRPC port instead of the Python backend's `exec` and `async_exec`, which create numpy arrays
from responses without holding Python's lock (infer_request.cc, InferRequest::Exec, and pb_stub.cc,
Stub::ProcessBLSResponseDecoupled, at triton-inference-server/python_backend@f9088ff of July 2026, and before), so a
model with several threads eventually crashes. A gRPC request can also be cancelled.

A stream carries only an error's message. Triton would end a stream with a status if its metadata sets
`triton_grpc_error`, but before 2.68 the responses after that access freed memory and crash the server
(triton-inference-server/server#8708). The status code is therefore derived from the message; unknown messages count as
errors of the request.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
import numpy as np
from grpc.experimental import ChannelOptions
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import np_to_triton_dtype, serialize_byte_tensor, triton_to_np_dtype

from trtspec.core.errors import Overloaded, TrtspecError
from trtspec.serving.triton.python_models.interruptions import Registration
from trtspec.serving.triton.python_models.responses import REFUSED, SHUTTING_DOWN
from trtspec.serving.triton.python_models.tensors import Array

# Triton's error codes by gRPC's; all others are internal errors.
STATUSES = {
    grpc.StatusCode.INVALID_ARGUMENT: REFUSED,
    grpc.StatusCode.NOT_FOUND: "NOT_FOUND",
    grpc.StatusCode.UNAVAILABLE: "UNAVAILABLE",
    grpc.StatusCode.UNIMPLEMENTED: "UNSUPPORTED",
    grpc.StatusCode.ALREADY_EXISTS: "ALREADY_EXISTS",
    grpc.StatusCode.CANCELLED: "CANCELLED",
}
# Parts of messages of Triton's core, its Python backend, TensorRT-LLM's backend, and trtspec's models.
STATUS_BY_MESSAGE = {
    "maximum queue size": "UNAVAILABLE",
    Overloaded.WORDS: "UNAVAILABLE",
    "timeout expired": "UNAVAILABLE",
    "is not ready": "UNAVAILABLE",
    "is not at ready state": "UNAVAILABLE",
    "has no available versions": "UNAVAILABLE",
    SHUTTING_DOWN: "UNAVAILABLE",
    "unknown model": "NOT_FOUND",
    "is not healthy": "INTERNAL",
    "Failed to process the request": "INTERNAL",
    "[TensorRT-LLM][ERROR]": "INTERNAL",
    "Encountered an error": "INTERNAL",
    "internal error": "INTERNAL",
    "request was cancelled": "CANCELLED",
}


def infer_request(model: str, inputs: Iterable[tuple[str, Array]], outputs: Iterable[str]) -> Any:
    """Return a ModelInferRequest; an array of dtype object must contain bytes."""
    request = service_pb2.ModelInferRequest(model_name=model)
    for name, array in inputs:
        request.inputs.add(name=name, datatype=np_to_triton_dtype(array.dtype), shape=array.shape)
        raw = serialize_byte_tensor(array).item() if array.dtype == object else array.tobytes()
        request.raw_input_contents.append(raw)
    for name in outputs:
        request.outputs.add(name=name)
    return request


def output_arrays(response: Any) -> dict[str, Array]:
    """Return the tensors in a ModelInferResponse by name; they must be numeric."""
    return {
        output.name: np.frombuffer(raw, triton_to_np_dtype(output.datatype)).reshape(output.shape)
        for output, raw in zip(response.outputs, response.raw_output_contents, strict=True)
    }


class ModelError(TrtspecError):
    """An error of another model; `status` is Triton's error code, by default derived from the message."""

    def __init__(self, message: str, status: str | None = None, *, where: str | None = None) -> None:
        super().__init__(message, where=where)
        self.status = status or status_from_message(message)


def status_from_message(message: str) -> str:
    """Return Triton's error code for an error message; an unknown message is an invalid request."""
    return next((status for words, status in STATUS_BY_MESSAGE.items() if words in message), REFUSED)


def error_from_rpc(error: grpc.RpcError) -> ModelError:
    return ModelError(error.details() or "no reason given", STATUSES.get(error.code(), "INTERNAL"))


TRUE = ("true", "1")
# With the first parameter, responses have the second as a flag, and the last one may lack tensors.
ASKS_FOR_LAST, IS_LAST = "triton_enable_empty_final_response", "triton_final_response"
LONGEST_TEXT_S = 3600.0  # timeout, because a model whose process died never responds
CONFIG_S = 10.0  # time for the server to report a model's configuration
NO_LIMIT = [(f"grpc.max_{way}_message_length", -1) for way in ("send", "receive")]  # logits are large
OPTIONS = [
    *NO_LIMIT,
    (ChannelOptions.SingleThreadedUnaryStream, 1),  # avoids a third thread per request and its context switch per token
]
METHOD = "/inference.GRPCInferenceService/ModelStreamInfer"


def is_last(response: Any) -> bool:
    """Return True if a response is the last one of its request; an error without the flag is the last, too."""
    parameters = response.infer_response.parameters
    return parameters[IS_LAST].bool_param if IS_LAST in parameters else bool(response.error_message)


def local_grpc_address(argv: Sequence[str]) -> str:
    """Return the gRPC address, on this machine, of the tritonserver that was started with `argv`.

    Raises:
        TrtspecError: if gRPC is disabled or requires a certificate.
    """
    words = [word for argument in argv for word in argument.split("=", 1)]
    options = dict(zip(words, [*words[1:], ""], strict=True))
    if options.get("--allow-grpc", "true").lower() not in TRUE:
        raise TrtspecError("the server was started with --allow-grpc=false, but its models use gRPC")
    if options.get("--grpc-use-ssl", "false").lower() in TRUE:
        raise TrtspecError("the server was started with --grpc-use-ssl, but its models lack a certificate")
    host = options.get("--grpc-address", "0.0.0.0")
    return f"{'127.0.0.1' if host == '0.0.0.0' else host}:{options.get('--grpc-port', '8001')}"


class LocalServerClient:
    """A gRPC client for the server at an address on this machine; thread-safe."""

    def __init__(self, address: str) -> None:
        self._channel = grpc.insecure_channel(address, OPTIONS)
        stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._open, self._config = stub.ModelStreamInfer, stub.ModelConfig
        # declared as unary-stream, so that nothing waits for a second request
        self._ask = self._channel.unary_stream(
            METHOD,
            request_serializer=service_pb2.ModelInferRequest.SerializeToString,
            response_deserializer=service_pb2.ModelStreamInferResponse.FromString,
        )

    def open(self) -> RequestStream:
        """Return a stream for the calls of one completion; close it, because the server waits for it at exit."""
        return RequestStream(self._open)

    def ask(self, request: Any, *, timeout_s: float | None = LONGEST_TEXT_S) -> ResponseStream:
        """Send one request on its own stream and return the responses; close them when done."""
        request.parameters[ASKS_FOR_LAST].bool_param = True
        return ResponseStream(self._ask(request, timeout=timeout_s))

    def model_parameter(self, model: str, key: str) -> str:
        """Return a parameter of a model's configuration; "" if it is missing or the server does not report it."""
        try:
            config = self._config(service_pb2.ModelConfigRequest(name=model), timeout=CONFIG_S).config
        except grpc.RpcError:
            return ""
        return str(config.parameters[key].string_value) if key in config.parameters else ""

    def close(self) -> None:
        self._channel.close()


class ResponseStream:
    def __init__(self, responses: Any) -> None:
        self._responses = responses

    def __iter__(self) -> Iterator[tuple[Any, bool]]:
        """Yield `(response, is_last)` pairs; raises ModelError if the model returns an error or the stream fails."""
        ended, refused = False, None
        try:
            # Read to the end of the stream: if cancelled after its last response, the server may keep the request.
            for response in self._responses:
                ended = is_last(response)
                if not response.error_message:
                    yield response.infer_response, ended
                    continue
                refused = ModelError(response.error_message)
                if not ended:
                    break
        except grpc.RpcError as error:
            raise refused or error_from_rpc(error) from None
        if refused or not ended:
            raise refused or ModelError("the server closed the stream before the last response", "UNAVAILABLE")

    def close(self) -> None:
        """Cancel the request if it is still open; thread-safe."""
        self._responses.cancel()


class RequestStream:
    """A gRPC stream of requests, each sent after the last response to the previous one.

    The stream is reused, because opening one takes as long as all other work for a small request.
    """

    def __init__(self, open_stream: Callable[..., Any]) -> None:
        self._requests: SimpleQueue[Any] = SimpleQueue()
        requests = iter(self._requests.get, None)
        self._responses = open_stream(requests, timeout=LONGEST_TEXT_S)
        self._waits = False  # True until the last response to a request

    def ask(self, request: Any) -> Iterator[Any]:
        """Send a ModelInferRequest and yield its responses; raises ModelError if one is an error or missing."""
        request.parameters[ASKS_FOR_LAST].bool_param = True
        self._waits = True
        self._requests.put(request)
        try:
            for response in self._responses:
                self._waits = not is_last(response)
                if response.error_message:
                    raise ModelError(response.error_message)
                yield response
                if not self._waits:
                    return
        except grpc.RpcError as error:
            raise error_from_rpc(error) from None
        raise ModelError("the server closed the stream before the last response", "UNAVAILABLE")

    def close(self) -> None:
        """Close the stream from the thread that reads its responses; other threads call `cancel`.

        An open request is cancelled. Otherwise the server ends the stream, because a stream that is cancelled without
        an open request may stay open.
        """
        if self._waits:
            self.cancel()
            return
        self._requests.put(None)
        with suppress(grpc.RpcError):
            for _ in self._responses:
                pass

    def cancel(self) -> None:
        """Cancel the stream in any state; thread-safe."""
        self._responses.cancel()
        self._requests.put(None)


class ReconnectingStream:
    """The stream for the calls of one completion, which is reopened after a failure or timeout."""

    def __init__(
        self, server: LocalServerClient, watch: Callable[[Callable[[], bool], Callable[[], None]], Registration]
    ) -> None:
        self._server, self._watch = server, watch
        self._stream: RequestStream | None = None
        self._closed = False
        self._lock = threading.Lock()

    def ask(self, request: Any, timeout_s: float = LONGEST_TEXT_S) -> Iterator[Any]:
        """Send a request and yield its responses; raises ModelError for an error or after `timeout_s` seconds."""
        stream, deadline = self._opened(), time.monotonic() + timeout_s
        watch = self._watch(lambda: time.monotonic() > deadline, stream.cancel) if timeout_s < LONGEST_TEXT_S else None
        try:
            yield from stream.ask(request)
        except ModelError:
            self._drop(stream)
            if watch and watch.has_left:
                raise ModelError(f"no response within {timeout_s:g} s", "UNAVAILABLE") from None
            raise
        finally:
            if watch:
                watch.close()
                if watch.has_left:  # the stream is cancelled or about to be
                    self._drop(stream)

    def close(self) -> None:
        """Close the stream; call it from the thread that uses it."""
        with self._lock:
            self._closed = True
            if self._stream:
                self._stream.close()

    def cancel(self) -> None:
        """Cancel the open request and reject further ones; thread-safe."""
        with self._lock:
            self._closed = True
            if self._stream:
                self._stream.cancel()

    def _opened(self) -> RequestStream:
        with self._lock:
            if self._closed:
                raise ModelError("the request has ended", "CANCELLED")
            if self._stream is None:
                self._stream = self._server.open()
            return self._stream

    def _drop(self, stream: RequestStream) -> None:
        with self._lock:
            if self._stream is stream:
                self._stream = None
        stream.close()


def local_server_client() -> LocalServerClient:
    """Return a client for the tritonserver that started this process."""
    argv = Path(f"/proc/{os.getppid()}/cmdline").read_bytes().decode(errors="replace").split("\0")
    return LocalServerClient(local_grpc_address(argv))
