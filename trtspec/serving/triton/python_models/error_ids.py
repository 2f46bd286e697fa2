# SPDX-License-Identifier: Apache-2.0
"""What a client is told of an error that is not its own: one sentence and an id, under which a log has the exception.

What went wrong inside may name paths, addresses or other people's texts, and is of no use to a client.
"""

from __future__ import annotations

import re
import secrets

SAID = re.compile(r"internal error ([0-9a-f]{12})\b")


def new_fault() -> str:
    """Return an id that nobody has."""
    return secrets.token_hex(6)


def fault_words(fault: str, log: str) -> str:
    """Return what a client is told; `log` is whose log says more."""
    return f"internal error {fault}: {log} log has what happened, under this id"


def fault_of(message: str) -> str | None:
    """Return the id that a message of another process already has."""
    found = SAID.search(message)
    return found and found[1]
