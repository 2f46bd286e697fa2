# SPDX-License-Identifier: Apache-2.0
"""The token for the control APIs of a deployment's server, stored in a file that only this user can read."""

from __future__ import annotations

import secrets
from pathlib import Path

from trtspec.core.errors import DeployError
from trtspec.core.files import private_file, read_bounded

FILE = "token"
TOKEN_BYTES = 32
PLACEHOLDER = "<token>"  # placeholder for the token in stored commands


def new_token(root: Path) -> str:
    """Write a new random token, 64 hex digits, into a deployment's directory and return it."""
    token = secrets.token_hex(TOKEN_BYTES)
    with private_file(root / FILE) as file:
        file.write(token.encode())
    return token


def read_token(root: Path) -> str:
    """Return the token in a deployment's directory; raise DeployError if it is unreadable."""
    try:
        return read_bounded(root / FILE, 2 * TOKEN_BYTES).decode()
    except (OSError, ValueError):
        hint = "deploy it again"
        raise DeployError("the deployment's token cannot be read", where=str(root / FILE), hint=hint) from None
