# SPDX-License-Identifier: Apache-2.0
"""What an interrupted calibration leaves for the next: the hidden states between two layers, and the peaks up to there.

Notes are put in place whole, after their bytes have reached the disk, so a kill costs what came after them and no more.
"""

from __future__ import annotations

import os
import pickle
import time
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from trtspec.files import sync

SAVE_EVERY_S = 60.0  # the states of many prompts are gigabytes

Tables = dict[str, dict[str, float]]


class CalibrationNotes:
    """The newest notes, in one file; without a path nothing is noted.

    `stamp` is what is measured, and on what; notes with another one are not read.
    """

    def __init__(self, path: Path | None, stamp: str, device: torch.device) -> None:
        self._path, self._device, self._saved_at = path, device, time.monotonic()
        machine = (
            torch.cuda.get_device_name(device) if device.type == "cuda" else torch.backends.cpu.get_cpu_capability()
        )
        self._stamp = f"{stamp} {torch.__version__} {device.type} {machine}"

    def load(self) -> tuple[int, list[Tensor], Tables] | None:
        """Return how many layers are done, the states behind them and the peaks so far; None where nothing is noted."""
        if self._path is None or not self._path.is_file():
            return None
        try:
            noted = torch.load(self._path, map_location=self._device, weights_only=True)
        except (OSError, RuntimeError, EOFError, pickle.UnpicklingError):  # what is no such file costs the work again
            return None
        return (noted["done"], noted["states"], noted["tables"]) if noted.get("stamp") == self._stamp else None

    def save(self, done: int, states: list[Tensor], tables: Tables) -> None:
        """Note that `done` layers are done, unless that was done a short while ago."""
        if self._path is None or time.monotonic() - self._saved_at < SAVE_EVERY_S:
            return
        temporary = self._path.with_suffix(".tmp")
        try:
            torch.save({"stamp": self._stamp, "done": done, "states": states, "tables": tables}, temporary)
            sync(temporary)
            os.replace(temporary, self._path)
            sync(self._path.parent)
        except (OSError, RuntimeError):  # a full disk: the next run begins where the last notes are
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
        self._saved_at = time.monotonic()
