# SPDX-License-Identifier: Apache-2.0
"""What every part of the soak is given, and what it leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Options:
    """What a run is asked for; `place` is an empty directory for what a part serves and logs."""

    place: Path
    seed: int
    streams: int
    seconds: float
    faults: int
    short: bool


@dataclass
class Report:
    """What a part has found so far, and what holds of it; what is not checked yet does not hold."""

    found: dict[str, Any] = field(default_factory=dict)
    checks: dict[str, bool] = field(default_factory=dict)
    complete: bool = False

    @property
    def holds(self) -> bool:
        return self.complete and all(self.checks.values())

    def document(self) -> dict[str, Any]:
        """Return what is written down."""
        return {"holds": self.holds, "complete": self.complete, "checks": self.checks, **self.found}


# Fills the report as it goes, so that an interrupted run leaves what it has.
Part = Callable[[Options, Report], None]
Parts = Mapping[str, Part]
