# SPDX-License-Identifier: Apache-2.0
"""The team store of the environment: TRTSPEC_REMOTE and TRTSPEC_REMOTE_MODE."""

from __future__ import annotations

import os
import re
from functools import cache
from typing import TYPE_CHECKING

from trtspec.core.errors import TrtspecError

if TYPE_CHECKING:
    from trtspec.store.team.client import TeamStore


def open_remote() -> TeamStore | None:
    """Return the team store of the environment, or None without TRTSPEC_REMOTE.

    Raises TrtspecError if a value is invalid. One process has one object for each pair of values.
    """
    address = os.environ.get("TRTSPEC_REMOTE", "")
    return _open_team_store(address, os.environ.get("TRTSPEC_REMOTE_MODE") or "read-write") if address else None


@cache
def _open_team_store(address: str, mode: str) -> TeamStore:
    from trtspec.core.registry import did_you_mean  # lazy: few commands have a team store
    from trtspec.store.registries.repository import check_address
    from trtspec.store.team.client import MODES, TeamStore

    if mode not in MODES:
        hint = did_you_mean(mode, MODES) or f"one of {', '.join(MODES)}"
        raise TrtspecError(f"unknown mode {mode[:100]!r}", where="TRTSPEC_REMOTE_MODE", hint=hint)
    check_address(address, "TRTSPEC_REMOTE")
    if re.match(r"hf:|file:.*\.tar(:[^/]*)?$", address):  # locations without several tags
        message, hint = f"{address[:200]!r} cannot be a team store", "use a registry, a bucket or a directory"
        raise TrtspecError(message, where="TRTSPEC_REMOTE", hint=hint)
    return TeamStore(address, mode)
