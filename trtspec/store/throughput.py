# SPDX-License-Identifier: Apache-2.0
"""How fast steps were on this machine: what a plan expects of the next one. Lost, it is measured again."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from statistics import median

from trtspec.core.files import replace_file
from trtspec.store.checksummed_json import load_sealed, seal
from trtspec.store.step import Step

SCHEMA = "trtspec.rates/1"
KEPT = 5  # the newest: disks fill, machines change
LEAST_BYTES = 16 << 20  # with less, starting is what takes the time


class Rates:
    """Bytes per second of the newest runs, by what a step does (`Step.kind`)."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def note(self, step: Step, seconds: float) -> None:
        """Note how long a step took that was run from its beginning to its end."""
        if step.total_bytes >= LEAST_BYTES and seconds > 0:
            known = self._load()
            known[step.kind] = [*known.get(step.kind, []), step.total_bytes / seconds][-KEPT:]
            with suppress(OSError):  # a full disk costs a plan its guess, nothing else
                self._path.parent.mkdir(parents=True, exist_ok=True)
                replace_file(self._path, seal(SCHEMA, {"rates": known}))

    def seconds_of(self, step: Step) -> float | None:
        """Return how long a step will take as the median of its kind did; None where none was large enough yet."""
        rates = self._load().get(step.kind)
        return step.total_bytes / median(rates) if rates else None

    def _load(self) -> dict[str, list[float]]:
        return dict((load_sealed(SCHEMA, self._path) or {"rates": {}})["rates"])
