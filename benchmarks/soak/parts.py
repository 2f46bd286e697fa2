# SPDX-License-Identifier: Apache-2.0
"""What every part of the soak is given, and what it leaves."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Options:
    """What a run is asked for; `place` is an empty directory for what a part serves and logs.

    `count` is how many faults or rollouts are left to do.
    """

    place: Path
    seed: int
    streams: int
    seconds: float
    count: int
    short: bool


@dataclass
class Report:
    """What a part has found so far, and what holds of it; what is not checked yet does not hold.

    `found` can be added to what other runs found: counts, lists of numbers, and both by name; `settings` cannot.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    found: dict[str, Any] = field(default_factory=dict)
    checks: dict[str, bool] = field(default_factory=dict)
    complete: bool = False

    @property
    def holds(self) -> bool:
        return self.complete and all(self.checks.values())

    def document(self) -> dict[str, Any]:
        """Return what is written down."""
        settings = {"settings": self.settings} if self.settings else {}
        return {"holds": self.holds, "complete": self.complete, "checks": self.checks, **settings, "found": self.found}


@dataclass(frozen=True)
class Part:
    """A part of the soak. `run` fills the report as it goes, so that an interrupted run leaves what it has.

    `counts` is what of the findings says how much is done, where several runs may add up to what is wanted.
    """

    run: Callable[[Options, Report], None]
    counts: str = ""


Parts = Mapping[str, Part]
