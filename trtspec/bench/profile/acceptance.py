# SPDX-License-Identifier: Apache-2.0
"""Acceptance by draft length, from how much of a draft every place of a text goes on with.

A text of n tokens takes its first from the prefill. At place i (i + 1 tokens are there) a step drafts at most draft_len
tokens and at most n - i - 2, since the last token of a text is never drafted, accepts those that the text goes on with,
and gives one more. Walking a text so gives the counts of any draft length without drafting again.

Means are told twice: token-weighted (all steps alike, which is what a server's throughput follows) and request-weighted
(all texts alike, which is what users see). Intervals are a bootstrap's over texts, so they speak of these prompts only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise, zip_longest
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    import numpy.typing as npt

    Array: TypeAlias = npt.NDArray[Any]

RESAMPLES = 1000
PERCENTILES = (2.5, 97.5)
SUREST, LONGEST = 0.98, 256  # a token of those in a row that are right; how many are looked at behind a whole draft


class Place(Protocol):
    """What was drafted at a place: tokens in a row, tokens in all, and with how many in a row the text goes on."""

    @property
    def depth(self) -> int: ...

    @property
    def tokens(self) -> int: ...

    @property
    def matched(self) -> int: ...


@dataclass(frozen=True)
class Counts:
    """The steps of one text: how many, tokens drafted and accepted; `reached[j]` and `drafted_at[j]` count the steps
    that accepted, and that drafted, a token at place j of the draft. Both are empty where nobody tells.
    """

    steps: int
    drafted: int
    accepted: int
    reached: tuple[int, ...] = ()
    drafted_at: tuple[int, ...] = ()

    @property
    def mean_accepted_len(self) -> float:
        """Return tokens a step."""
        return 1.0 + self.accepted / self.steps if self.steps else 1.0

    @property
    def in_a_row(self) -> int:
        """Return the most tokens that could have been accepted: of a tree one branch, where its places are told."""
        return sum(self.drafted_at) or self.drafted

    def cut(self, draft_len: int) -> Counts:
        """Return what the same steps would have come to, had the drafts of a chain ended there."""
        reached, drafted_at = self.reached[:draft_len], self.drafted_at[:draft_len]
        return Counts(self.steps, sum(drafted_at), sum(reached), reached, drafted_at)

    def redrafted(self, draft_len: int, goes_on: float) -> Counts:
        """Return what the text would have come to with shorter drafts of a chain that follows from the text alone.

        What a step accepted behind its first `draft_len` tokens and the target's own is drafted again there, and
        accepted again: tokens in a row that are right, with the one behind them, take a step for `draft_len` + 1 each.
        Each token behind a draft that was right to its end is right with probability `goes_on`.
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
        growth = steps / max(1, self.drafted_at[0])  # of the steps near a text's end, too, whose drafts are shorter
        drafted_at = (*map(max, right, (round(growth * each) for each in self.drafted_at)),)
        return Counts(self.steps - self.drafted_at[0] + steps, sum(drafted_at), sum(right), right, drafted_at)

    def _in_a_row(self, goes_on: float) -> Iterator[tuple[int, float]]:
        """Yield (tokens in a row that are right and the one behind them, how often this text is expected to have it).

        Those that are right to the end of a draft are followed by steps of their own, which are not counted again.
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
    """A mean and its 95 % interval."""

    value: float
    low: float
    high: float

    def as_list(self) -> list[float]:
        """Return the three numbers."""
        return [round(number, 3) for number in (self.value, self.low, self.high)]

    def __str__(self) -> str:
        return f"{self.value:.2f} ({self.low:.2f} to {self.high:.2f})"


@dataclass(frozen=True)
class Acceptance:
    """What texts came to at one draft length; `kinds` are those of their prompts."""

    texts: tuple[Counts, ...]
    kinds: tuple[str, ...]

    @cached_property
    def rate(self) -> float:
        """Return accepted of drafted tokens, 0 where nothing was drafted."""
        drafted = sum(text.drafted for text in self.texts)
        return sum(text.accepted for text in self.texts) / drafted if drafted else 0.0

    @cached_property
    def depth_rate(self) -> float:
        """Return accepted tokens of those drafted in a row: of a tree only one branch can be accepted."""
        drafted = sum(text.in_a_row for text in self.texts)
        return sum(text.accepted for text in self.texts) / drafted if drafted else 0.0

    @cached_property
    def token_weighted(self) -> Estimate:
        """Return the mean accepted length of all steps, the verified token included."""
        return _estimate(self.texts, lambda steps, accepted: 1.0 + accepted.sum(-1) / steps.sum(-1))

    @cached_property
    def request_weighted(self) -> Estimate:
        """Return the mean over texts of their mean accepted lengths."""
        return _estimate(self.texts, lambda steps, accepted: (1.0 + accepted / steps).mean(-1))

    @cached_property
    def by_position(self) -> list[float]:
        """Return for each place of a draft the share of its drafted tokens that were accepted."""
        drafted, reached = (
            [sum(column) for column in zip_longest(*counts, fillvalue=0)]
            for counts in ([text.drafted_at for text in self.texts], [text.reached for text in self.texts])
        )
        return [accepted / many if many else 0.0 for accepted, many in zip(reached, drafted, strict=True)]

    def of_kind(self, kind: str) -> Acceptance:
        """Return that of the texts of one kind."""
        own = tuple(text for text, each in zip(self.texts, self.kinds, strict=True) if each == kind)
        return Acceptance(own, (kind,) * len(own))

    def cut(self, draft_len: int) -> Acceptance:
        """Return that of shorter drafts, as far as steps that begin elsewhere are accepted alike."""
        return Acceptance(tuple(text.cut(draft_len) for text in self.texts), self.kinds)

    def redrafted(self, draft_len: int) -> Acceptance:
        """Return that of shorter drafts where the same is drafted behind the same text, wherever a step begins."""
        columns = zip(*((text.drafted_at[0], *text.reached) for text in self.texts), strict=True)
        *_, before, last = map(sum, columns)
        goes_on = min(SUREST, last / before) if before else 0.0
        return Acceptance(tuple(text.redrafted(draft_len, goes_on) for text in self.texts), self.kinds)

    def as_dict(self) -> dict[str, Any]:
        """Return its keys of the document."""
        return {
            "acceptance_rate": round(self.rate, 4),
            "mean_accepted_len": {
                "token_weighted": self.token_weighted.as_list(),
                "request_weighted": self.request_weighted.as_list(),
            },
        }


def count_steps(places: Sequence[Place], draft_len: int) -> Counts:
    """Return the steps of one text where at most `draft_len` tokens in a row are drafted.

    `places` are those behind each token of the text but the last. Of a tree all tokens count as drafted.
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
    return Counts(steps, drafted, accepted, tuple(reached), tuple(drafted_at))


def change_of(before: Sequence[Counts], after: Sequence[Counts]) -> Estimate:
    """Return how much the mean accepted length has grown, with the interval of a bootstrap over pairs of a text."""
    import numpy as np

    steps, accepted = (
        np.array([[getattr(text, key) for text in side] for side in (before, after)]) for key in ("steps", "accepted")
    )
    drawn = np.random.default_rng(0).integers(len(before), size=(RESAMPLES, len(before)))

    def grown(texts: Array) -> Array:
        first, second = accepted[:, texts].sum(-1) / steps[:, texts].sum(-1)
        return np.asarray(second - first)

    low, high = np.percentile(grown(drawn), PERCENTILES)
    return Estimate(float(grown(np.arange(len(before)))), float(low), float(high))


def _estimate(texts: Sequence[Counts], mean: Callable[[Array, Array], Any]) -> Estimate:
    """Return a mean of steps and accepted tokens [..., texts] with its interval; equal texts give equal ones.

    One text says nothing of others: its interval is from no drafted token accepted to all of them.
    """
    import numpy as np

    own = [text for text in texts if text.steps]
    if not own:
        return Estimate(1.0, 1.0, 1.0)
    steps, accepted = np.array([text.steps for text in own]), np.array([text.accepted for text in own])
    value = float(mean(steps, accepted))
    if len(own) == 1:
        return Estimate(value, 1.0, 1.0 + own[0].in_a_row / own[0].steps)
    drawn = np.random.default_rng(0).integers(len(own), size=(RESAMPLES, len(own)))
    low, high = np.percentile(mean(steps[drawn], accepted[drawn]), PERCENTILES)
    return Estimate(value, float(low), float(high))
