# SPDX-License-Identifier: Apache-2.0
"""Results of a comparison with and without speculation, and the speed-up with its confidence interval.

A ratio is the seconds of a prompt without speculation divided by the seconds with it, both measured in one run. With
several runs, the ratio of a prompt is the median over runs. The speed-up is the median over prompts. Its interval is a
bootstrap over prompts: prompts are resampled with replacement, and 95 % of the medians are inside the interval. The
prompt is the unit, because repeating a prompt adds no information about other prompts. The result holds for similar
prompts on this machine.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from trtspec.engine.generation.request import Stats

RESAMPLES = 2000
PERCENTILES = (2.5, 97.5)
ENOUGH = 6  # with fewer, even the full range covers the median in under 95 % of cases: 1 - 2 / 2**n


@dataclass(frozen=True)
class Speedup:
    """Median of `samples` ratios, one per prompt, with its 95 % interval, and the ratio of the `total` times."""

    median: float
    low: float
    high: float
    total: float
    samples: int

    def reaches(self, limit: float) -> bool | None:
        """Return True if the speed-up is at least `limit`, False if it is lower, None if the interval is undecided."""
        if self.samples < ENOUGH or self.low < limit <= self.high:
            return None
        return self.low >= limit

    def as_dict(self) -> dict[str, Any]:
        """Return the fields for the documents of `bench` and `verify`."""
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
    """Return the speed-up from one ratio per prompt; the result is deterministic."""
    import numpy as np

    samples = np.asarray(ratios)
    median, low, high = bootstrap(len(samples), lambda drawn: np.median(samples[drawn], axis=-1), RESAMPLES)
    return Speedup(median, low, high, total, len(ratios))


def bootstrap(samples: int, statistic: Callable[[Any], Any], resamples: int) -> tuple[float, float, float]:
    """Return a statistic over all samples and its 95 % bootstrap interval; the result is deterministic.

    `statistic` maps the indices of drawn samples, [..., samples], to values [...].
    """
    import numpy as np

    drawn = np.random.default_rng(0).integers(samples, size=(resamples, samples))
    low, high = np.percentile(statistic(drawn), PERCENTILES)
    return float(statistic(np.arange(samples))), float(low), float(high)


@dataclass
class BenchSide:
    """One side of a comparison: tokens/s of each run, and the statistics and seconds of all its requests."""

    tokens_per_s: list[float] = field(default_factory=list)
    stats: Stats = field(default_factory=Stats)
    seconds: float = 0.0

    @property
    def median(self) -> float:
        return statistics.median(self.tokens_per_s)

    def as_dict(self) -> dict[str, Any]:
        return {
            "tokens_per_s": [round(sample, 2) for sample in self.tokens_per_s],
            "median_tokens_per_s": round(self.median, 2),
            "acceptance_rate": round(self.stats.acceptance_rate, 4),
            "mean_accepted_len": round(self.stats.mean_accepted_len, 3),
        }


@dataclass
class BenchComparison:
    """Results of a comparison; `ratios` are baseline seconds / speculative seconds of all prompts, run by run.

    `acceptance` is the acceptance rule, or "unknown" for a server whose artifact is not available. `ratios` is empty if
    only speculation was measured. `counts_drafts` is True if the engine reports the number of drafted tokens.
    """

    prompts: int
    max_tokens: int
    acceptance: str
    baseline: BenchSide = field(default_factory=BenchSide)
    speculative: BenchSide = field(default_factory=BenchSide)
    ratios: list[float] = field(default_factory=list)
    identical_texts: int = 0
    counts_drafts: bool = True

    @property
    def runs(self) -> int:
        """Return the number of times that each side ran every prompt."""
        return len(self.ratios) // self.prompts

    @property
    def seconds(self) -> float:
        return self.baseline.seconds + self.speculative.seconds

    @property
    def speedup(self) -> Speedup:
        by_prompt = [statistics.median(self.ratios[place :: self.prompts]) for place in range(self.prompts)]
        return estimate_speedup(by_prompt, self.baseline.seconds / self.speculative.seconds)

    def as_dict(self) -> dict[str, Any]:
        """Return the document of `bench --json`."""
        return {
            "format_version": 1,
            "prompts": self.prompts,
            "max_tokens": self.max_tokens,
            "acceptance": self.acceptance,
            "baseline": self.baseline.as_dict(),
            "speculative": self.speculative.as_dict(),
            **self.speedup.as_dict(),
            "identical_texts": self.identical_texts,
        }
