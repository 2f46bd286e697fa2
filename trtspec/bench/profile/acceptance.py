# SPDX-License-Identifier: Apache-2.0
"""Acceptance at every draft length, computed from the number of drafted tokens that match the text at each position.

The first token of a text of n tokens comes from the prefill. At position i (after i + 1 tokens), a step drafts at most
draft_len tokens and at most n - i - 2, because the last token of a text is never drafted. The step accepts the matching
tokens and adds one token. Simulating a text in this way gives the counts for any draft length without drafting again.

Means are computed in two ways: token-weighted (over all steps, which determines server throughput) and request-weighted
(over texts, which users observe). Intervals are bootstraps over texts, so they hold for these prompts only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, zip_longest
from typing import TYPE_CHECKING, Any, TypeAlias

from trtspec.bench.speedup import bootstrap

if TYPE_CHECKING:
    import numpy.typing as npt

    from trtspec.engine.measurement import ReplayedDraft

    Array: TypeAlias = npt.NDArray[Any]

RESAMPLES = 1000
SUREST, LONGEST = 0.98, 256  # maximum continuation probability; maximum run after a full draft


@dataclass(frozen=True)
class StepCounts:
    """Numbers of steps, drafted tokens and accepted tokens of one text.

    `reached[j]` is the number of steps that accepted a token at draft position j, and `drafted_at[j]` the number of
    steps that drafted one. Both are empty if unknown.
    """

    steps: int
    drafted: int
    accepted: int
    reached: tuple[int, ...] = ()
    drafted_at: tuple[int, ...] = ()

    @property
    def mean_accepted_len(self) -> float:
        """Return the mean number of tokens per step, including the target's own token."""
        return 1.0 + self.accepted / self.steps if self.steps else 1.0

    @property
    def in_a_row(self) -> int:
        """Return the maximum number of tokens that could have been accepted; in a tree, only one branch can be."""
        return sum(self.drafted_at) or self.drafted

    def cut(self, draft_len: int) -> StepCounts:
        """Return the counts of the same steps with chain drafts truncated to `draft_len`."""
        reached, drafted_at = self.reached[:draft_len], self.drafted_at[:draft_len]
        return StepCounts(self.steps, sum(drafted_at), sum(reached), reached, drafted_at)

    def redrafted(self, draft_len: int, goes_on: float) -> StepCounts:
        """Estimate the counts with shorter chain drafts, for a drafter that depends only on the text.

        If a step accepted more than `draft_len` tokens, later steps draft and accept the rest again. A run of correct
        tokens and the token after it therefore takes one step per `draft_len` + 1 tokens. Each token after a fully
        accepted draft is correct with probability `goes_on`.
        """
        drafting, reached, tokens = 0.0, [0.0] * draft_len, 0.0
        for length, many in self._in_a_row(goes_on):
            whole, rest = divmod(length, draft_len + 1)
            drafting, tokens = drafting + many * (whole + (rest > 0)), tokens + many * length
            for place in range(draft_len):
                reached[place] += many * (whole + (place < rest - 1))
        scale = (self.accepted + self.drafted_at[0]) / max(1.0, tokens)
        right = (*(round(scale * each) for each in reached),)
        steps = round(scale * drafting)
        growth = steps / max(1, self.drafted_at[0])  # also for steps at a text's end, which draft less
        drafted_at = (*map(max, right, (round(growth * each) for each in self.drafted_at)),)
        return StepCounts(self.steps - self.drafted_at[0] + steps, sum(drafted_at), sum(right), right, drafted_at)

    def _in_a_row(self, goes_on: float) -> Iterator[tuple[int, float]]:
        """Yield (length of a run of correct tokens plus the token after it, expected number of such runs in the text).

        The steps that follow a fully accepted draft continue its run, so their tokens are not counted again.
        """
        most = len(self.reached)
        *ended, whole = (more - further for more, further in pairwise((self.drafted_at[0], *self.reached, 0)))
        for accepted, many in enumerate(ended):
            following = whole * goes_on ** (accepted + 1) * (1 - goes_on)
            yield accepted + 1, max(0.0, many - following)
        first = whole * (1 - goes_on ** (most + 1))
        for further in range(LONGEST):
            yield most + further + 1, first * goes_on**further * (1 - goes_on)


@dataclass(frozen=True)
class Estimate:
    """A mean and its 95 % confidence interval."""

    value: float
    low: float
    high: float

    def as_list(self) -> list[float]:
        return [round(number, 3) for number in (self.value, self.low, self.high)]

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True)
class AcceptanceStats:
    """Step counts of several texts at one draft length; `kinds` are the categories of their prompts."""

    texts: tuple[StepCounts, ...]
    kinds: tuple[str, ...]

    @cached_property
    def rate(self) -> float:
        """Return accepted tokens / drafted tokens, or 0 if nothing was drafted."""
        drafted = sum(text.drafted for text in self.texts)
        return sum(text.accepted for text in self.texts) / drafted if drafted else 0.0

    @cached_property
    def depth_rate(self) -> float:
        """Return accepted tokens / drafted depth; unlike `rate`, it counts one branch of a tree."""
        drafted = sum(text.in_a_row for text in self.texts)
        return sum(text.accepted for text in self.texts) / drafted if drafted else 0.0

    @cached_property
    def token_weighted(self) -> Estimate:
        """Return the mean accepted length over all steps, including the target's own token."""
        return _estimate(self.texts, lambda steps, accepted: 1.0 + accepted.sum(-1) / steps.sum(-1))

    @cached_property
    def request_weighted(self) -> Estimate:
        """Return the mean over texts of the mean accepted length of each text."""
        return _estimate(self.texts, lambda steps, accepted: (1.0 + accepted / steps).mean(-1))

    @cached_property
    def by_position(self) -> list[float]:
        """Return the fraction of drafted tokens that were accepted, for each draft position."""
        drafted = map(sum, zip_longest(*(text.drafted_at for text in self.texts), fillvalue=0))
        reached = map(sum, zip_longest(*(text.reached for text in self.texts), fillvalue=0))
        return [accepted / many if many else 0.0 for accepted, many in zip(reached, drafted, strict=True)]

    def for_category(self, kind: str) -> AcceptanceStats:
        own = tuple(text for text, each in zip(self.texts, self.kinds, strict=True) if each == kind)
        return AcceptanceStats(own, (kind,) * len(own))

    def cut(self, draft_len: int) -> AcceptanceStats:
        """Return the acceptance of truncated drafts, assuming that acceptance does not depend on where steps begin."""
        return AcceptanceStats(tuple(text.cut(draft_len) for text in self.texts), self.kinds)

    def redrafted(self, draft_len: int) -> AcceptanceStats:
        """Estimate the acceptance of shorter drafts, for a drafter that depends only on the preceding text."""
        columns = zip(*((text.drafted_at[0], *text.reached) for text in self.texts), strict=True)
        *_, before, last = map(sum, columns)
        goes_on = min(SUREST, last / before) if before else 0.0
        return AcceptanceStats(tuple(text.redrafted(draft_len, goes_on) for text in self.texts), self.kinds)

    def as_dict(self) -> dict[str, Any]:
        return {
            "acceptance_rate": round(self.rate, 4),
            "mean_accepted_len": {
                "token_weighted": self.token_weighted.as_list(),
                "request_weighted": self.request_weighted.as_list(),
            },
            "by_position": [round(rate, 4) for rate in self.by_position],
        }


def count_steps(places: Sequence[ReplayedDraft], draft_len: int) -> StepCounts:
    """Return the step counts of one text for drafts of at most `draft_len` levels.

    `places` are the drafts after each token of the text except the last. All tokens of a tree count as drafted.
    """
    steps = drafted = accepted = at = 0
    reached, drafted_at = [0] * draft_len, [0] * draft_len
    while at < len(places):
        place = places[at]
        depth = min(draft_len, len(places) - at - 1, place.depth)
        matched = min(depth, place.matched)
        for position in range(depth):
            drafted_at[position] += 1
            reached[position] += position < matched
        drafted += depth if place.tokens == place.depth else place.tokens if depth else 0
        steps, accepted, at = steps + 1, accepted + matched, at + matched + 1
    return StepCounts(steps, drafted, accepted, tuple(reached), tuple(drafted_at))


def acceptance_change(before: Sequence[StepCounts], after: Sequence[StepCounts]) -> Estimate:
    """Return the increase of the mean accepted length, with a bootstrap interval over paired texts."""
    import numpy as np

    steps = np.array([[text.steps for text in side] for side in (before, after)])
    accepted = np.array([[text.accepted for text in side] for side in (before, after)])

    def grown(texts: Array) -> Array:
        first, second = accepted[:, texts].sum(-1) / steps[:, texts].sum(-1)
        return np.asarray(second - first)

    return Estimate(*bootstrap(len(before), grown, RESAMPLES))


def _estimate(texts: Sequence[StepCounts], mean: Callable[[Array, Array], Any]) -> Estimate:
    """Return a mean over texts with its bootstrap interval; the result is deterministic.

    `mean` maps numbers of steps and of accepted tokens, both [..., texts], to means. For a single text, the interval
    ranges from no accepted token to all drafted tokens.
    """
    import numpy as np

    own = [text for text in texts if text.steps]
    if not own:
        return Estimate(1.0, 1.0, 1.0)
    steps, accepted = np.array([text.steps for text in own]), np.array([text.accepted for text in own])
    if len(own) == 1:
        return Estimate(float(mean(steps, accepted)), 1.0, 1.0 + own[0].in_a_row / own[0].steps)
    return Estimate(*bootstrap(len(own), lambda drawn: mean(steps[drawn], accepted[drawn]), RESAMPLES))
