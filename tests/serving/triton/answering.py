# SPDX-License-Identifier: Apache-2.0
"""A gRPC server in this process whose models are functions, for clients of Triton's models."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import deserialize_bytes_tensor, np_to_triton_dtype, triton_to_np_dtype

WAIT_S = 20.0


@dataclass(frozen=True)
class Response:
    """A model's response: tensors or an error."""

    outputs: dict[str, np.ndarray]
    error: str = ""

    def message(self) -> Any:
        message = last_message() if self.error else service_pb2.ModelStreamInferResponse()
        message.error_message = self.error
        for name, array in self.outputs.items():
            kind = np_to_triton_dtype(array.dtype)
            message.infer_response.outputs.add(name=name, datatype=kind, shape=array.shape)
            message.infer_response.raw_output_contents.append(array.tobytes())
        return message


def response(error: str = "", **outputs: Any) -> Response:
    arrays = {name: np.array(value) for name, value in outputs.items()}
    return Response(
        {name: array.astype(np.int32) if array.dtype == np.int64 else array for name, array in arrays.items()},
        error,
    )


@dataclass
class Request:
    """A received request, and whether its client cancelled it before the last response."""

    model: str
    inputs: dict[str, np.ndarray]
    outputs: list[str]
    left: threading.Event = field(default_factory=threading.Event)


Serve = Callable[[str, dict[str, np.ndarray]], list[Response]]


class Models(service_pb2_grpc.GRPCInferenceServiceServicer):
    """Models whose responses come from `serve`; `made` are the received requests.

    With `waits`, the stream stays open after the last response until the client cancels. With `closes_early`, the
    stream ends without the last response. With `lingers`, a stream ends a moment late; `ended` has whether its client
    waited.
    """

    def __init__(self) -> None:
        self.serve: Serve = lambda *_: []
        self.made: list[Request] = []
        self.waits = self.closes_early = self.lingers = False
        self.ended: list[bool] = []
        self.streams = 0
        self.address = ""

    def ModelStreamInfer(self, request_iterator: Iterator[Any], context: Any) -> Iterator[Any]:  # noqa: N802  its name
        self.streams += 1
        assert "triton_grpc_error" not in dict(context.invocation_metadata()), "this metadata crashes the server"
        for request in request_iterator:
            assert request.parameters["triton_enable_empty_final_response"].bool_param
            made = Request(request.model_name, arrays(request), [output.name for output in request.outputs])
            self.made.append(made)
            context.add_callback(made.left.set)
            failed = False
            for one in self.serve(made.model, made.inputs):
                yield one.message()
                failed |= bool(one.error)
            if failed:
                continue
            if self.waits:
                made.left.wait(WAIT_S)
            if self.closes_early:
                return
            yield last_message()
        if self.lingers:
            time.sleep(0.2)
            self.ended.append(context.is_active())


def last_message() -> Any:
    """Return the final response without tensors, which Triton sends if a request asks for it."""
    message = service_pb2.ModelStreamInferResponse()
    message.infer_response.parameters["triton_final_response"].bool_param = True
    return message


def _values(raw: bytes, datatype: str) -> np.ndarray:
    if datatype == "BYTES":
        return np.asarray(deserialize_bytes_tensor(raw))
    return np.frombuffer(raw, triton_to_np_dtype(datatype))


def arrays(request: Any) -> dict[str, np.ndarray]:
    return {
        tensor.name: _values(raw, tensor.datatype).reshape(tensor.shape)
        for tensor, raw in zip(request.inputs, request.raw_input_contents, strict=True)
    }


@contextmanager
def answering() -> Iterator[Models]:
    """Serve models on loopback."""
    models = Models()
    server = grpc.server(ThreadPoolExecutor(8))
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(models, server)
    models.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        yield models
    finally:
        server.stop(grace=None).wait(30)
