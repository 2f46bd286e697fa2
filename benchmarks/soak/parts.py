# SPDX-License-Identifier: Apache-2.0
"""Options and reports of the parts of the soak test."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Options:
    """The options of a run; `place` is an empty directory for artifacts and logs.

    `count` is the number of remaining faults or rollouts.
    """

    place: Path
    seed: int
    streams: int
    seconds: float
    count: int
    short: bool


@dataclass
class Report:
    """A part's results and checks; a check that was not reached fails.

    `found` can be added up over runs: counts, lists of numbers, and both by name; `settings` cannot.
    """

    settings: dict[str, Any] = field(default_factory=dict)
    found: dict[str, Any] = field(default_factory=dict)
    checks: dict[str, bool] = field(default_factory=dict)
    complete: bool = False

    @property
    def holds(self) -> bool:
        return self.complete and all(self.checks.values())

    def document(self) -> dict[str, Any]:
        """Return the JSON document."""
        settings = {"settings": self.settings} if self.settings else {}
        return {"holds": self.holds, "complete": self.complete, "checks": self.checks, **settings, "found": self.found}


@dataclass(frozen=True)
class Part:
    """A part of the soak test. `run` fills the report incrementally, so that an interrupted run keeps its results.

    `counts` is the key in `found` that measures progress, if several runs can add up to the requested number.
    """

    run: Callable[[Options, Report], None]
    counts: str = ""


Parts = Mapping[str, Part]
