# SPDX-License-Identifier: Apache-2.0
"""Ids of internal errors: the client gets only an id, and a log has the exception under it.

Internal errors may contain paths, addresses or other users' texts, and are of no use to a client.
"""

from __future__ import annotations

import re
import secrets

ERROR_ID = re.compile(r"internal error ([0-9a-f]{12})\b")


def new_error_id() -> str:
    """Return a random error id."""
    return secrets.token_hex(6)


def client_message(fault: str, log: str) -> str:
    """Return the client's message; `log` names the log, such as "the server's"."""
    return f"internal error {fault}: see {log} log under this id"


def parse_error_id(message: str) -> str | None:
    """Return the error id in a message of another process, or None."""
    found = ERROR_ID.search(message)
    return found and found[1]
