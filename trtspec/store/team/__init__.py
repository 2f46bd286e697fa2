# SPDX-License-Identifier: Apache-2.0
"""The team store: entries of the store in a registry, a layout or a bucket that several machines share."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trtspec.store.remote import Remote


def open_remote() -> Remote | None:
    """Return the team store of TRTSPEC_REMOTE and TRTSPEC_REMOTE_MODE, or None if it is not set.

    Raises TrtspecError if a value is invalid. One process has one object for each setting.
    """
    if not (address := os.environ.get("TRTSPEC_REMOTE", "")):
        return None
    from trtspec.store.team.client import open_team_store

    return open_team_store(address, os.environ.get("TRTSPEC_REMOTE_MODE", ""))
