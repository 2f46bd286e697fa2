# SPDX-License-Identifier: Apache-2.0
"""What a model of a server answers in the place of tensors, and of what kind it is.

A stream brings the words alone. Triton would end it with a status where its metadata asks for `triton_grpc_error`, but
before 2.68 the responses behind that touch memory that was freed, of which the server dies
(triton-inference-server/server#8708). So the kind is read from the words; ones that are not known are of the request.
"""

from __future__ import annotations

from typing import Any

import grpc

from trtspec.core.errors import Overloaded, TrtspecError
from trtspec.serving.triton.python_models.tensors import SHUTTING_DOWN

REFUSED = "INVALID_ARG"
# Triton's codes by gRPC's; whatever else went wrong is the server's fault.
STATUSES = {
    grpc.StatusCode.INVALID_ARGUMENT: REFUSED,
    grpc.StatusCode.NOT_FOUND: "NOT_FOUND",
    grpc.StatusCode.UNAVAILABLE: "UNAVAILABLE",
    grpc.StatusCode.UNIMPLEMENTED: "UNSUPPORTED",
    grpc.StatusCode.ALREADY_EXISTS: "ALREADY_EXISTS",
    grpc.StatusCode.CANCELLED: "CANCELLED",
}
# In the words of Triton's core, its Python backend, TensorRT-LLM's backend, and our own models.
WORDS = {
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


class ModelRefusal(TrtspecError):
    """What another model of the server answered in the place of tensors; `status` is Triton's name of its kind."""

    def __init__(self, message: str, status: str, *, where: str | None = None) -> None:
        super().__init__(message, where=where)
        self.status = status


def status_of(message: str) -> str:
    """Return Triton's name of the kind of an error."""
    return next((status for words, status in WORDS.items() if words in message), REFUSED)


def refusal_of(message: str) -> ModelRefusal:
    """Return what an answer says that has an error's words."""
    return ModelRefusal(message, status_of(message))


def refusal(error: grpc.RpcError) -> ModelRefusal:
    """Return why there are no more responses."""
    return ModelRefusal(error.details() or "no reason given", STATUSES.get(error.code(), "INTERNAL"))


def is_last(response: Any, parameter: str) -> bool:
    """Return whether a response is a request's last: one that never reached its model says it in words alone."""
    said = response.infer_response.parameters
    return said[parameter].bool_param if parameter in said else bool(response.error_message)
