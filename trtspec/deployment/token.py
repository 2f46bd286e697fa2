# SPDX-License-Identifier: Apache-2.0
"""The token of a deployment: who has it may use its server's control APIs. It lies in a file of this user alone."""

from __future__ import annotations

import secrets
from pathlib import Path

from trtspec.core.errors import DeployError
from trtspec.core.files import private_file, read_bounded

FILE = "token"
TOKEN_BYTES = 32
PLACEHOLDER = "<token>"  # what stands for it wherever else a command is written down


def new_token(root: Path) -> str:
    """Return a random token, 64 hex digits, and write it into a deployment's directory in place of a former one."""
    token = secrets.token_hex(TOKEN_BYTES)
    with private_file(root / FILE) as file:
        file.write(token.encode())
    return token


def read_token(root: Path) -> str:
    """Return the token of the deployment in a directory; DeployError where it has none."""
    try:
        return read_bounded(root / FILE, 2 * TOKEN_BYTES).decode()
    except (OSError, ValueError):
        hint = "deploy it again"
        raise DeployError("the deployment's token cannot be read", where=str(root / FILE), hint=hint) from None
