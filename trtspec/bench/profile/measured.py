# SPDX-License-Identifier: Apache-2.0
"""Measurements of one candidate: acceptance, step times and the resulting speed-up, as JSON values and back."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import pairwise
from typing import Any

from trtspec.bench.profile.acceptance import AcceptanceStats, Estimate
from trtspec.bench.profile.options import ProfileCandidate

TIMED_LENS = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16, 24, 32, 48, 64)  # other lengths are interpolated
# Share of the fastest speed-up; predictions are not more precise (schedule.PAYS). For n-grams, 8 tokens were predicted
# at 1.608 and measured at 1.543, 6 tokens at 1.581 and 1.59. Shorter drafts cost less if acceptance drops.
AS_GOOD = 0.98

Case = tuple[int, int]  # (concurrency, draft_len); 0 for the target alone


@dataclass(frozen=True)
class ExpectedSpeedup:
    """The expected speed-up over the target alone at concurrency `batch` and a draft length."""

    batch: int
    draft_len: int
    expected: Estimate

    def as_dict(self) -> dict[str, Any]:
        value, low, high = self.expected.as_list()
        return {"batch": self.batch, "draft_len": self.draft_len, "speedup": value, "interval": [low, high]}


@dataclass(frozen=True)
class CandidateMeasurements:
    """Acceptance by draft length, and seconds of a step by (concurrency, draft_len), 0 for the target alone.

    `prefills` are the total seconds of so many prefills, for the target alone and with the drafter; `response_len` is
    the mean number of response tokens.
    """

    candidate: ProfileCandidate
    acceptance: dict[int, AcceptanceStats]
    seconds: dict[tuple[int, int], float]
    prefills: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    response_len: float = math.inf

    @property
    def batches(self) -> list[int]:
        """Return the measured concurrencies in ascending order."""
        return sorted({batch for batch, _ in self.seconds})

    @cached_property
    def speedups(self) -> list[ExpectedSpeedup]:
        """Return the expected speed-up of every draft length at every concurrency."""
        return [self.speedup(batch, draft_len) for batch in self.batches for draft_len in self.acceptance]

    def best(self, batch: int, lens: Iterable[int] | None = None) -> ExpectedSpeedup:
        """Return the shortest draft length whose speed-up is within AS_GOOD of the fastest one.

        `lens` are the lengths to choose from, by default all measured ones.
        """
        found = [self.speedup(batch, draft_len) for draft_len in (self.acceptance if lens is None else lens)]
        fastest = max(each.expected.value for each in found)
        return next(each for each in found if each.expected.value >= AS_GOOD * fastest)

    def speedup(self, batch: int, draft_len: int) -> ExpectedSpeedup:
        """Return the expected speed-up from the time per token, including the prefills that block all requests."""
        tokens, steps = self.acceptance[draft_len].token_weighted, self.response_len - 1
        prefill_alone, prefill_drafting = (self._prefill(batch, side) / steps for side in (0, 1))
        alone, step = self.step_seconds(batch, 0) + prefill_alone, self.step_seconds(batch, draft_len)

        def times(step_tokens: float) -> float:
            return alone / (step / step_tokens + prefill_drafting)

        return ExpectedSpeedup(batch, draft_len, Estimate(times(tokens.value), times(tokens.low), times(tokens.high)))

    def idle(self, batch: int) -> float:
        """Return the speed-up with the drafter loaded but idle (it still prefills)."""
        seconds = self.step_seconds(batch, 0)
        alone, idle = (seconds + self._prefill(batch, side) / (self.response_len - 1) for side in (0, 1))
        return alone / idle

    def step_seconds(self, batch: int, draft_len: int) -> float:
        """Return the seconds of a step, interpolated linearly between measured lengths and concurrencies."""

        def at_batch(rows: int) -> float:
            by_len = {length: seconds for (each, length), seconds in self.seconds.items() if each == rows}
            return _on_line(by_len, draft_len)

        return _on_line({rows: at_batch(rows) for rows in self.batches}, batch)

    def _prefill(self, batch: int, side: int) -> float:
        return _on_line({rows: pair[side] for rows, pair in self.prefills.items()}, batch) if self.prefills else 0.0


def _on_line(known: Mapping[int, float], at: int) -> float:
    """Return the value at `at`, interpolated linearly between its neighbours."""
    if at in known:
        return known[at]
    low, high = next(pair for pair in pairwise(sorted(known)) if pair[0] < at < pair[1])
    share = (at - low) / (high - low)
    return known[low] * (1 - share) + known[high] * share


def least_seconds(samples: Mapping[Case, Sequence[float]]) -> dict[Case, float]:
    """Return each case's minimum, because other load on the machine only adds time.

    More draft tokens or rows never take less time, so a case that took longer than a larger one was disturbed in every
    round and takes its minimum.
    """
    return {
        (rows, draft_len): min(
            min(seconds) for (more, longer), seconds in samples.items() if more >= rows and longer >= draft_len
        )
        for rows, draft_len in samples
    }


def dump_measured(measured: CandidateMeasurements) -> Any:
    """Return measurements without the candidate as JSON values."""
    seconds, prefills = [*measured.seconds.items()], [*measured.prefills.items()]
    return _saved().dump_python((measured.acceptance, seconds, prefills, measured.response_len), mode="json")


def read_measured(candidate: ProfileCandidate, saved: Any) -> CandidateMeasurements:
    acceptance, seconds, prefills, response_len = _saved().validate_python(saved)
    return CandidateMeasurements(candidate, acceptance, dict(seconds), dict(prefills), response_len)


@cache
def _saved() -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(
        tuple[dict[int, AcceptanceStats], list[tuple[Case, float]], list[tuple[int, tuple[float, float]]], float]
    )
