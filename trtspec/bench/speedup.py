# SPDX-License-Identifier: Apache-2.0
"""Estimate the speed-up from speculation with its confidence interval.

A ratio is the seconds of one prompt without speculation divided by those with it, both measured in one run. With
several runs, a prompt's ratio is the median over runs. The speed-up is the median of the prompts' ratios. Its interval
is a bootstrap: prompts are resampled with replacement, and 95 % of the medians are inside it. The prompt is the unit,
because repeating a prompt adds no information about others. The result holds for such prompts on this machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

MAX_RUNS = 5  # while a speed-up is undecided
HOLDS, FAILS, UNDECIDED = "holds", "fails", "undecided"  # the states of a check
RESAMPLES = 2000
PERCENTILES = (2.5, 97.5)
ENOUGH = 6  # with fewer prompts even the full range covers the median in less than 95 % of cases: 1 - 2 / 2**n


@dataclass(frozen=True)
class Speedup:
    """The median of `samples` ratios, one per prompt, its 95 % interval, and the ratio of the total times."""

    median: float
    low: float
    high: float
    total: float
    samples: int

    def reaches(self, limit: float) -> bool | None:
        """Return whether the speed-up is at least `limit`, or None if the interval does not decide that."""
        if self.samples < ENOUGH or self.low < limit <= self.high:
            return None
        return self.low >= limit

    def state(self, limit: float) -> str:
        """Return "holds", "fails", or "undecided" if the interval includes the limit."""
        return HOLDS if self.low >= limit else FAILS if self.high < limit else UNDECIDED

    def as_dict(self) -> dict[str, Any]:
        """Return the fields used in the documents of `bench` and `verify`."""
        return {
            "speedup": round(self.median, 3),
            "speedup_interval": [round(self.low, 3), round(self.high, 3)],
            "speedup_total": round(self.total, 3),
        }

    def __str__(self) -> str:
        return (
            f"{self.median:.2f} times as fast (median of {self.samples} prompts; 95 % interval {self.low:.2f} "
            f"to {self.high:.2f}; {self.total:.2f} by total time)"
        )


def estimate_speedup(ratios: Sequence[float], total: float) -> Speedup:
    """Return the speed-up from one ratio per prompt; deterministic."""
    import numpy as np

    samples = np.asarray(ratios)
    drawn = np.random.default_rng(0).integers(len(samples), size=(RESAMPLES, len(samples)))
    low, high = np.percentile(np.median(samples[drawn], axis=1), PERCENTILES)
    return Speedup(float(np.median(samples)), float(low), float(high), total, len(ratios))
