# SPDX-License-Identifier: Apache-2.0
"""How many times as fast speculation is, and how sure that is.

A ratio is the seconds of one prompt without speculation over those with it, both measured in one run; of several runs
it is the prompt's median. The speed-up is the median of the prompts' ratios. Its interval is a bootstrap's: as many
prompts are drawn from them, with replacement, again and again, and 95 % of the medians lie in it. The prompt is the
unit: to ask the same ones again tells nothing of others. It speaks of such prompts on this machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

MAX_RUNS = 5  # of an undecided speed-up
HOLDS, FAILS, UNDECIDED = "holds", "fails", "undecided"  # the states of a check
RESAMPLES = 2000
PERCENTILES = (2.5, 97.5)
ENOUGH = 6  # of fewer prompts even the whole range holds the median in less than 95 % of cases: 1 - 2 / 2**n


@dataclass(frozen=True)
class Speedup:
    """The median of `samples` ratios, one of each prompt, its 95 % interval, and the ratio of the total times."""

    median: float
    low: float
    high: float
    total: float
    samples: int

    def reaches(self, limit: float) -> bool | None:
        """Return whether it is at least `limit`, or None where the interval does not decide that."""
        if self.samples < ENOUGH or self.low < limit <= self.high:
            return None
        return self.low >= limit

    def state(self, limit: float) -> str:
        """Return whether a limit "holds", "fails", or is "undecided" because the interval includes it."""
        return HOLDS if self.low >= limit else FAILS if self.high < limit else UNDECIDED

    def as_dict(self) -> dict[str, Any]:
        """Return its keys of the documents of `bench` and `verify`."""
        return {
            "speedup": round(self.median, 3),
            "speedup_interval": [round(self.low, 3), round(self.high, 3)],
            "speedup_total": round(self.total, 3),
        }

    def __str__(self) -> str:
        return (
            f"{self.median:.2f} times as fast (median of {self.samples} ratios by prompt; 95 % interval {self.low:.2f} "
            f"to {self.high:.2f}; {self.total:.2f} by total time)"
        )


def speedup_of(ratios: Sequence[float], total: float) -> Speedup:
    """Return the speed-up that ratios show, one of each prompt; the same ones always give the same interval."""
    import numpy as np

    samples = np.asarray(ratios)
    drawn = np.random.default_rng(0).integers(len(samples), size=(RESAMPLES, len(samples)))
    low, high = np.percentile(np.median(samples[drawn], axis=1), PERCENTILES)
    return Speedup(float(np.median(samples)), float(low), float(high), total, len(ratios))
