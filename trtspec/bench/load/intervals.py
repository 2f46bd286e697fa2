# SPDX-License-Identifier: Apache-2.0
"""How many times as much, and how sure that is. A round is the unit: requests of one round share its weather.

A ratio is the geometric mean over rounds. Its interval is Student's, of the logarithms: within a document of the
rounds' ratios, whose two arms ran one after the other; between documents Welch's, of the two sets of rounds
(B. L. Welch, Biometrika 34, 1947). Few rounds give a wide interval, not a wrong one.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

CONFIDENCE = 0.95
POINTS = 20_001  # at which the distribution is summed: its quantiles are right to five digits


@dataclass(frozen=True)
class Ratio:
    """A ratio with its interval, which is from 0 to infinity where there are too few rounds for one."""

    value: float
    low: float
    high: float
    rounds: int
    confidence: float = CONFIDENCE

    @property
    def half_width(self) -> float:
        """Return half the width of the interval, as a part of the ratio."""
        return (self.high - self.low) / 2 / self.value

    @property
    def shows(self) -> int:
        """Return 1 for a ratio that is shown to be above 1, -1 for below, 0 where no difference is shown."""
        return (self.low > 1) - (self.high < 1)

    def inverse(self) -> Ratio:
        """Return the ratio the other way round."""
        high = 1 / self.low if self.low else math.inf
        return Ratio(1 / self.value, 1 / self.high, high, self.rounds, self.confidence)

    def widened(self, factor: float) -> Ratio:
        """Return it with an interval that leaves room for a further factor either way."""
        factor = max(factor, 1 / factor)
        return Ratio(self.value, self.low / factor, self.high * factor, self.rounds, self.confidence)

    def as_dict(self) -> dict[str, Any]:
        """Return its part of a document; an end that is not known is null."""
        low, high = (round(end, 4) if 0 < end < math.inf else None for end in (self.low, self.high))
        return {"ratio": round(self.value, 4), "low": low, "high": high, "rounds": self.rounds}


def ratio_of_rounds(ratios: Sequence[float], confidence: float = CONFIDENCE) -> Ratio:
    """Return what ratios of rounds come to, a ratio each; raises ValueError for none, or one that is not positive."""
    logs = [math.log(each) for each in ratios]
    if not logs:
        raise ValueError("there are no rounds")
    error = statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.inf
    return _ratio(statistics.mean(logs), error, len(logs) - 1, len(logs), confidence)


def ratio_between(before: Sequence[float], after: Sequence[float], confidence: float = CONFIDENCE) -> Ratio:
    """Return how many times the values of `before` those of `after` are, both positive and one of each round."""
    logs = [[math.log(each) for each in side] for side in (before, after)]
    shift = statistics.mean(logs[1]) - statistics.mean(logs[0])
    rounds = min(map(len, logs))
    if rounds < 2:
        return _ratio(shift, math.inf, 1, rounds, confidence)
    parts = [statistics.variance(side) / len(side) for side in logs]
    below = sum(part**2 / (len(side) - 1) for part, side in zip(parts, logs, strict=True))
    freedom = sum(parts) ** 2 / below if below else rounds - 1
    return _ratio(shift, math.sqrt(sum(parts)), freedom, rounds, confidence)


def _ratio(log: float, error: float, freedom: float, rounds: int, confidence: float) -> Ratio:
    if error == math.inf:
        return Ratio(math.exp(log), 0.0, math.inf, rounds, confidence)
    reach = t_quantile((1 + confidence) / 2, freedom) * error
    ends = (math.exp(max(-700.0, log - reach)), math.exp(min(700.0, log + reach)))
    return Ratio(math.exp(log), *ends, rounds, confidence)


@lru_cache(64)
def t_quantile(share: float, freedom: float) -> float:
    """Return the value that a variable of Student's distribution is below with a probability.

    With t = sqrt(freedom) tan(x) the density of x is proportional to cos(x)^(freedom - 1), which is summed here.
    """
    import numpy as np

    angles = np.linspace(-math.pi / 2, math.pi / 2, POINTS)
    density = np.abs(np.cos(angles)) ** (freedom - 1)
    below = np.concatenate([[0.0], np.cumsum((density[1:] + density[:-1]) / 2)])
    angle = float(np.interp(share, below / below[-1], angles))
    return math.sqrt(freedom) * math.tan(angle)
