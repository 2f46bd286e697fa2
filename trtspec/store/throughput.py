# SPDX-License-Identifier: Apache-2.0
"""Throughput of earlier steps on this machine, to estimate the next ones; measured again if the file is lost."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from statistics import median

from trtspec.core.files import replace_file
from trtspec.store.checksummed_json import dump_checksummed, load_checksummed
from trtspec.store.step import Step

SCHEMA = "trtspec.rates/1"
KEPT = 5  # only the newest runs: disks fill up and machines change
LEAST_BYTES = 16 << 20  # below this, start-up dominates the time


class StepRates:
    """Bytes per second of the newest runs by `Step.kind`."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def note(self, step: Step, seconds: float) -> None:
        """Record the duration of a step that ran from start to end."""
        if step.total_bytes >= LEAST_BYTES and seconds > 0:
            known = self._load()
            known[step.kind] = [*known.get(step.kind, []), step.total_bytes / seconds][-KEPT:]
            with suppress(OSError):  # on a full disk only the estimate is lost
                self._path.parent.mkdir(parents=True, exist_ok=True)
                replace_file(self._path, dump_checksummed(SCHEMA, {"rates": known}))

    def seconds_of(self, step: Step) -> float | None:
        """Return the estimated seconds by the median throughput of the step's kind, or None if unknown."""
        rates = self._load().get(step.kind)
        return step.total_bytes / median(rates) if rates else None

    def _load(self) -> dict[str, list[float]]:
        return dict((load_checksummed(SCHEMA, self._path) or {"rates": {}})["rates"])
