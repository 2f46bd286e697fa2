# SPDX-License-Identifier: Apache-2.0
"""Errors of another model of the server, and their codes.

A stream carries only the message. Triton would end a stream with a status if its metadata sets `triton_grpc_error`, but
before 2.68 the responses after that access freed memory and crash the server (triton-inference-server/server#8708). The
code is therefore derived from the message; unknown messages count as errors of the request.
"""

from __future__ import annotations

from typing import Any

import grpc

from trtspec.core.errors import Overloaded, TrtspecError
from trtspec.serving.triton.python_models.tensors import SHUTTING_DOWN

REFUSED = "INVALID_ARG"
# Triton's codes by gRPC's; all others are internal errors.
STATUSES = {
    grpc.StatusCode.INVALID_ARGUMENT: REFUSED,
    grpc.StatusCode.NOT_FOUND: "NOT_FOUND",
    grpc.StatusCode.UNAVAILABLE: "UNAVAILABLE",
    grpc.StatusCode.UNIMPLEMENTED: "UNSUPPORTED",
    grpc.StatusCode.ALREADY_EXISTS: "ALREADY_EXISTS",
    grpc.StatusCode.CANCELLED: "CANCELLED",
}
# Message parts of Triton's core, its Python backend, TensorRT-LLM's backend, and our own models.
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


class ModelError(TrtspecError):
    """An error response of another model; `status` is Triton's error code."""

    def __init__(self, message: str, status: str, *, where: str | None = None) -> None:
        super().__init__(message, where=where)
        self.status = status


def status_from_message(message: str) -> str:
    """Return Triton's code of an error message."""
    return next((status for words, status in STATUS_BY_MESSAGE.items() if words in message), REFUSED)


def error_from_message(message: str) -> ModelError:
    """Return the error for an error message."""
    return ModelError(message, status_from_message(message))


def error_from_rpc(error: grpc.RpcError) -> ModelError:
    """Return the error for a gRPC failure."""
    return ModelError(error.details() or "no reason given", STATUSES.get(error.code(), "INTERNAL"))


def is_last(response: Any, parameter: str) -> bool:
    """Return whether a response is the last of its request; an error from before the model lacks the parameter."""
    parameters = response.infer_response.parameters
    return parameters[parameter].bool_param if parameter in parameters else bool(response.error_message)
