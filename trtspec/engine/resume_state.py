# SPDX-License-Identifier: Apache-2.0
"""A state that the next process goes on with, in one file: put in place whole, after its bytes reached the disk."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from trtspec.core.files import private_file, sync


def save_notes(path: Path, state: Mapping[str, Any]) -> None:
    """Put a state at `path`; where there is no room for it, what was there stays, and no more is lost than time."""
    temporary = path.with_suffix(".tmp")
    try:
        with private_file(temporary) as file:  # of one name, so that a kill leaves one at most
            torch.save(dict(state), file)
        sync(temporary)
        os.replace(temporary, path)
        sync(path.parent)
    except (OSError, RuntimeError):  # torch's word for a full disk is the second
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def load_notes(path: Path, device: torch.device) -> dict[str, Any] | None:
    """Return the state at `path`, its tensors on a device; None without one, and for what is no such file."""
    if not path.is_file():
        return None
    try:
        found: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError):  # which costs the work again
        return None
    return found
