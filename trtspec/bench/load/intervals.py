# SPDX-License-Identifier: Apache-2.0
"""Ratios with confidence intervals over rounds; the round is the unit, because its requests share noise.

A ratio is the geometric mean over rounds, and its interval is computed on the logarithms. Within a document it is
Student's interval for the rounds' ratios, whose two arms ran back to back. Between documents it is Welch's interval for
the two sets of rounds (B. L. Welch, Biometrika 34, 1947). With few rounds, the intervals are wide.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

CONFIDENCE = 0.95
POINTS = 20_001  # points of the numerical integration, which make quantiles accurate to five digits


@dataclass(frozen=True)
class RatioInterval:
    """A ratio with its confidence interval, which is 0 to infinity if there are too few rounds."""

    value: float
    low: float
    high: float
    rounds: int
    confidence: float = CONFIDENCE

    @property
    def half_width(self) -> float:
        """Return the relative half-width of the interval, (high - low) / (2 * value)."""
        return (self.high - self.low) / 2 / self.value

    @property
    def shows(self) -> int:
        """Return 1 if the whole interval is above 1, -1 if it is below 1, else 0."""
        return (self.low > 1) - (self.high < 1)

    def inverse(self) -> RatioInterval:
        high = 1 / self.low if self.low else math.inf
        return RatioInterval(1 / self.value, 1 / self.high, high, self.rounds, self.confidence)

    def widened(self, factor: float) -> RatioInterval:
        """Return a copy whose interval allows for an additional factor in either direction."""
        factor = max(factor, 1 / factor)
        return RatioInterval(self.value, self.low / factor, self.high * factor, self.rounds, self.confidence)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON fields; unknown interval bounds are null."""
        low, high = (round(end, 4) if 0 < end < math.inf else None for end in (self.low, self.high))
        return {"ratio": round(self.value, 4), "low": low, "high": high, "rounds": self.rounds}


def ratio_of_rounds(ratios: Sequence[float], confidence: float = CONFIDENCE) -> RatioInterval:
    """Return the mean ratio over rounds; raises ValueError without rounds or for a ratio that is not positive."""
    logs = [math.log(each) for each in ratios]
    if not logs:
        raise ValueError("at least one round is required")
    error = statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.inf
    return _ratio(statistics.mean(logs), error, len(logs) - 1, len(logs), confidence)


def ratio_between(before: Sequence[float], after: Sequence[float], confidence: float = CONFIDENCE) -> RatioInterval:
    """Return the ratio of `after` to `before`, which contain one positive value per round."""
    logs = [[math.log(each) for each in side] for side in (before, after)]
    shift = statistics.mean(logs[1]) - statistics.mean(logs[0])
    rounds = min(map(len, logs))
    if rounds < 2:
        return _ratio(shift, math.inf, 1, rounds, confidence)
    parts = [statistics.variance(side) / len(side) for side in logs]
    below = sum(part**2 / (len(side) - 1) for part, side in zip(parts, logs, strict=True))
    freedom = sum(parts) ** 2 / below if below else rounds - 1
    return _ratio(shift, math.sqrt(sum(parts)), freedom, rounds, confidence)


def _ratio(log: float, error: float, freedom: float, rounds: int, confidence: float) -> RatioInterval:
    if error == math.inf:
        return RatioInterval(math.exp(log), 0.0, math.inf, rounds, confidence)
    reach = t_quantile((1 + confidence) / 2, freedom) * error
    ends = (math.exp(max(-700.0, log - reach)), math.exp(min(700.0, log + reach)))
    return RatioInterval(math.exp(log), *ends, rounds, confidence)


@lru_cache(64)
def t_quantile(share: float, freedom: float) -> float:
    """Return the quantile of Student's t distribution at probability `share`, with `freedom` degrees of freedom.

    With t = sqrt(freedom) tan(x), the density of x is proportional to cos(x)^(freedom - 1), which is integrated
    numerically.
    """
    import numpy as np

    angles = np.linspace(-math.pi / 2, math.pi / 2, POINTS)
    density = np.abs(np.cos(angles)) ** (freedom - 1)
    below = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    angle = float(np.interp(share, below / below[-1], angles))
    return math.sqrt(freedom) * math.tan(angle)
