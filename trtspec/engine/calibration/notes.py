# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of a calibration, to resume it: the hidden states between two layers and the peaks so far.

A killed process loses only the work since the last checkpoint.
"""

from __future__ import annotations

import time
from pathlib import Path

import torch
from torch import Tensor

from trtspec.engine.resume_state import load_resume_state, save_resume_state

SAVE_EVERY_S = 60.0  # the states of many prompts are gigabytes

Tables = dict[str, dict[str, float]]


class CalibrationCheckpoint:
    """The latest checkpoint in one file; without a path nothing is saved.

    `stamp` identifies the measurement and its inputs; checkpoints with another stamp are ignored.
    """

    def __init__(self, path: Path | None, stamp: str, device: torch.device) -> None:
        self._path, self._device, self._saved_at = path, device, time.monotonic()
        machine = (
            torch.cuda.get_device_name(device) if device.type == "cuda" else torch.backends.cpu.get_cpu_capability()
        )
        self._stamp = f"{stamp} {torch.__version__} {device.type} {machine}"

    def load(self) -> tuple[int, list[Tensor], Tables] | None:
        """Return the number of finished layers, their output states and the peaks, or None without a checkpoint."""
        noted = load_resume_state(self._path, self._device) if self._path else None
        if noted is None or noted.get("stamp") != self._stamp:
            return None
        return noted["done"], noted["states"], noted["tables"]

    def save(self, done: int, states: list[Tensor], tables: Tables) -> None:
        """Save the state after `done` layers, unless the last save was less than SAVE_EVERY_S ago."""
        if self._path is None or time.monotonic() - self._saved_at < SAVE_EVERY_S:
            return
        save_resume_state(self._path, {"stamp": self._stamp, "done": done, "states": states, "tables": tables})
        self._saved_at = time.monotonic()
