# SPDX-License-Identifier: Apache-2.0
"""One candidate, measured: how much of its drafts is accepted, what its steps take, and the speed-up that follows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Any

from trtspec.bench.profile.acceptance import Acceptance, Estimate
from trtspec.bench.profile.candidate import Candidate

TIMED_LENS = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16, 24, 32, 48, 64)  # what lies between is interpolated
# Of the fastest: expectations are no surer (schedule.PAYS). Of n-grams 8 tokens were expected at 1.608 and made 1.543
# times, 6 were expected at 1.581 and made 1.59; a shorter draft is less work where fewer tokens are accepted.
AS_GOOD = 0.98

Case = tuple[int, int]  # requests at once, draft_len; 0 for the target alone


@dataclass(frozen=True)
class Speedup:
    """How many times as fast as the target alone `batch` requests at once are expected to be with a draft length."""

    batch: int
    draft_len: int
    expected: Estimate

    def as_dict(self) -> dict[str, Any]:
        """Return its keys of the document."""
        value, low, high = self.expected.as_list()
        return {"batch": self.batch, "draft_len": self.draft_len, "speedup": value, "interval": [low, high]}


@dataclass(frozen=True)
class Measured:
    """Acceptance by draft length, and the seconds of a step by (requests, draft_len), 0 for the target alone.

    `prefills` are the seconds that so many requests wait for all of their prefills, of the target alone and with what
    drafts; `answer_len` is the mean answer's tokens.
    """

    candidate: Candidate
    acceptance: dict[int, Acceptance]
    seconds: dict[tuple[int, int], float]
    prefills: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    answer_len: float = math.inf

    @property
    def batches(self) -> list[int]:
        """Return how many requests at once were measured, ascending."""
        return sorted({batch for batch, _ in self.seconds})

    @cached_property
    def speedups(self) -> list[Speedup]:
        """Return the expected speed-up of every draft length at every batch."""
        return [self.speedup(batch, draft_len) for batch in self.batches for draft_len in self.acceptance]

    def best(self, batch: int, lens: Iterable[int] | None = None) -> Speedup:
        """Return the fastest draft length for so many requests at once, the shortest of those as good as it.

        `lens` are those to choose from, by default all that were measured.
        """
        found = [self.speedup(batch, draft_len) for draft_len in (self.acceptance if lens is None else lens)]
        fastest = max(each.expected.value for each in found)
        return next(each for each in found if each.expected.value >= AS_GOOD * fastest)

    def speedup(self, batch: int, draft_len: int) -> Speedup:
        """Return what to expect by the seconds of a token: of its step, and of prefills, for which all others wait."""
        tokens, steps = self.acceptance[draft_len].token_weighted, self.answer_len - 1
        prefill_alone, prefill_drafting = (self._prefill(batch, side) / steps for side in (0, 1))
        alone, step = self.step_seconds(batch, 0) + prefill_alone, self.step_seconds(batch, draft_len)

        def times(step_tokens: float) -> float:
            return alone / (step / step_tokens + prefill_drafting)

        return Speedup(batch, draft_len, Estimate(times(tokens.value), times(tokens.low), times(tokens.high)))

    def idle(self, batch: int) -> float:
        """Return the speed with what drafts where it drafts nothing, which reads prompts, against the target alone."""
        seconds = self.step_seconds(batch, 0)
        alone, idle = (seconds + self._prefill(batch, side) / (self.answer_len - 1) for side in (0, 1))
        return alone / idle

    def step_seconds(self, batch: int, draft_len: int) -> float:
        """Return what a step takes; between measured lengths and batches on the line between their neighbours."""

        def of_rows(rows: int) -> float:
            of_lens = {length: seconds for (each, length), seconds in self.seconds.items() if each == rows}
            return _on_line(of_lens, draft_len)

        return _on_line({rows: of_rows(rows) for rows in self.batches}, batch)

    def _prefill(self, batch: int, side: int) -> float:
        return _on_line({rows: pair[side] for rows, pair in self.prefills.items()}, batch) if self.prefills else 0.0


def _on_line(known: Mapping[int, float], at: int) -> float:
    """Return a value between its neighbours, on the line between them."""
    if at in known:
        return known[at]
    low, high = next(pair for pair in pairwise(sorted(known)) if pair[0] < at < pair[1])
    share = (at - low) / (high - low)
    return known[low] * (1 - share) + known[high] * share


def least_seconds(samples: Mapping[Case, Sequence[float]]) -> dict[Case, float]:
    """Return the least of the seconds that each case took: what else a machine does only adds to one.

    To draft more, or for more rows, takes no less: a case that took longer than such a one met such a time in every
    round.
    """
    return {
        (rows, draft_len): min(
            min(seconds) for (more, longer), seconds in samples.items() if more >= rows and longer >= draft_len
        )
        for rows, draft_len in samples
    }
