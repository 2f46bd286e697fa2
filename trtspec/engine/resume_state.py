# SPDX-License-Identifier: Apache-2.0
"""Resume state in one file, replaced atomically after its bytes are synced to disk."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from trtspec.core.files import fsync_path, private_file


def save_resume_state(path: Path, state: Mapping[str, Any]) -> None:
    """Save a state at `path`. If the disk is full, keep the previous file: the state only saves time."""
    temporary = path.with_suffix(".tmp")
    try:
        with private_file(temporary) as file:  # a fixed name, so that killed processes leave at most one file
            torch.save(dict(state), file)
        fsync_path(temporary)
        os.replace(temporary, path)
        fsync_path(path.parent)
    except (OSError, RuntimeError):  # torch raises RuntimeError for a full disk
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def load_resume_state(path: Path, device: torch.device) -> dict[str, Any] | None:
    """Return the state at `path` with its tensors on `device`, or None if the file is missing or invalid."""
    if not path.is_file():
        return None
    try:
        found: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError):  # the work is done again
        return None
    return found
