# SPDX-License-Identifier: Apache-2.0
"""Internal errors: the client gets an id, and the gateway's log has the details under the same id."""

from __future__ import annotations

import logging

from trtspec.serving.gateway.errors import ApiError
from trtspec.serving.triton.python_models.error_ids import client_message, new_error_id

log = logging.getLogger(__name__)


def internal_error(what: str, details: str, *, code: str = "internal_error") -> ApiError:
    """Return the error for the client and log its details."""
    fault = new_error_id()
    log.error("internal error %s: %s: %s", fault, what, details)
    message = client_message(fault, "the gateway's")
    return ApiError(500, f"{what}: {message}", code=code)
