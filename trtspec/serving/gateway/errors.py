# SPDX-License-Identifier: Apache-2.0
"""Errors in OpenAI's format: a JSON object {"error": {message, type, param, code}} and an HTTP status."""

from __future__ import annotations

import json
import logging
import re

from trtspec.serving.triton.python_models.responses import client_message, new_error_id

RETRY_AFTER_S = 1
SHUTTING_DOWN = "shutting_down"
TYPES = {401: "authentication_error", 429: "rate_limit_error"}  # others below 500: invalid_request_error
log = logging.getLogger(__name__)
PATH = re.compile(r"(?<![\w/])~?(?:/[\w.@+-]+){2,}/?")  # paths of the server are hidden from clients


class ApiError(Exception):
    """An error that the gateway sends to the client, as a response or as the last event of a stream.

    Args:
        status: HTTP status; used only if the response has not started.
        message: description for the client; file paths in it are replaced by "[...]".
        param: name of the invalid request parameter.
        code: machine-readable error code.
        retry_after_s: seconds for the Retry-After header; set if the same request may succeed later.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = PATH.sub("[...]", message)
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s

    @property
    def body(self) -> bytes:
        kind = "server_error" if self.status >= 500 else TYPES.get(self.status, "invalid_request_error")
        described = {"message": self.message, "type": kind, "param": self.param, "code": self.code}
        return json.dumps({"error": described}).encode()

    @property
    def headers(self) -> dict[str, str]:
        """Return the response's additional headers: Retry-After and WWW-Authenticate, if applicable."""
        headers = {} if self.retry_after_s is None else {"retry-after": str(self.retry_after_s)}
        return headers | ({"www-authenticate": "Bearer"} if self.status == 401 else {})


def invalid_request(message: str, param: str | None = None, code: str = "invalid_value") -> ApiError:
    return ApiError(400, message, param=param, code=code)


def unsupported(what: str, param: str, hint: str = "") -> ApiError:
    """Return the error for a feature of OpenAI's API that this server does not support; `hint` is for its operator."""
    message = f"{what} is not supported by this server" + (f"; {hint}" if hint else "")
    return invalid_request(message, param, "unsupported_parameter")


def too_long(prompt_len: int, max_tokens: int, limit: int, param: str) -> ApiError:
    """Return the error for a prompt and completion longer than the context; all lengths are in tokens."""
    asked = f" and the request asks for {max_tokens} more" if max_tokens else ""
    message = f"This model's maximum context length is {limit} tokens; the prompt has {prompt_len}{asked}"
    return invalid_request(message, param, "context_length_exceeded")


def shutting_down() -> ApiError:
    """Return the error for a request that is interrupted by the server's shutdown."""
    return ApiError(503, "the server is shutting down", code=SHUTTING_DOWN, retry_after_s=RETRY_AFTER_S)


def overloaded(message: str) -> ApiError:
    """Return the error for a valid request that the server cannot accept now."""
    return ApiError(503, message, code="overloaded", retry_after_s=RETRY_AFTER_S)


def internal_error(what: str, details: str, *, code: str = "internal_error") -> ApiError:
    """Log `details` under a new error id and return the client's 500 error, which contains only the id."""
    fault = new_error_id()
    log.error("internal error %s: %s: %s", fault, what, details)
    message = client_message(fault, "the gateway's")
    return ApiError(500, f"{what}: {message}", code=code)
