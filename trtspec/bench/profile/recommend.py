# SPDX-License-Identifier: Apache-2.0
"""Measurements of candidates, and the recommended method, draft and draft lengths by concurrency.

Draft lengths are chosen by concurrency so that a server is never slower than its target alone. A recipe's schedule
never drafts more tokens at a higher concurrency. A length that pays at a high concurrency is therefore also used at
lower ones, and if these become slower, the schedule is empty.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from itertools import pairwise
from typing import Any

from trtspec.bench.decision import DraftOption, Proposal, RelativeSpeed, describe_load
from trtspec.bench.profile.acceptance import AcceptanceStats, Estimate
from trtspec.bench.profile.candidates import ProfileCandidate

TIMED_LENS = (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 16, 24, 32, 48, 64)  # other lengths are interpolated between these
# Fraction of the best speed-up that counts as equal, as predictions err (PAYS). For n-grams, 8 tokens were predicted
# at 1.608 and measured at 1.543, 6 tokens at 1.581 and 1.59. Shorter drafts cost less if acceptance drops.
AS_GOOD = 0.98

Case = tuple[int, int]  # (concurrency, draft_len); length 0 is the target alone
PAYS = 1.02  # minimum speed-up; smaller ones are within the noise of two equal runs
LOSES = 1.0  # minimum speed-up at loads that draft only for the benefit of other loads
# Minimum speed-up above the lowest concurrency: predictions for one token at high concurrency were up to 9 % too high
# (benchmarks/experiments/profile-predictions.md), and useless drafts make a server slower than its target alone.
GOES_ON = 1.05
# Minimum gain for another length; predictions err by up to 5 % (benchmarks/experiments/profile-predictions.md).
CHANGES = 1.04
# Below these acceptance rates, a draft that does not pay is harmful, and one that pays is worth training.
HARMFUL, TRAINABLE = 0.5, 0.6


@dataclass(frozen=True)
class ExpectedSpeedup:
    """Expected speed-up over the target alone at concurrency `batch` and a draft length."""

    batch: int
    draft_len: int
    expected: Estimate

    def as_dict(self) -> dict[str, Any]:
        value, low, high = self.expected.as_list()
        return {"batch": self.batch, "draft_len": self.draft_len, "speedup": value, "interval": [low, high]}


@dataclass(frozen=True)
class CandidateMeasurements:
    """Acceptance by draft length, and seconds of a step by (concurrency, draft length); length 0 is the target alone.

    `prefills` maps a concurrency to the total seconds of that many prefills, without and with the drafter.
    `response_len` is the mean number of response tokens.
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
        """Return the expected speed-up of each draft length at each concurrency."""
        return [self.speedup(batch, draft_len) for batch in self.batches for draft_len in self.acceptance]

    def best(self, batch: int, lens: Iterable[int] | None = None) -> ExpectedSpeedup:
        """Return the shortest draft length whose speed-up is at least AS_GOOD times the best one.

        `lens` are the draft lengths to choose from; the default is all measured ones.
        """
        found = [self.speedup(batch, draft_len) for draft_len in (self.acceptance if lens is None else lens)]
        fastest = max(each.expected.value for each in found)
        return next(each for each in found if each.expected.value >= AS_GOOD * fastest)

    def speedup(self, batch: int, draft_len: int) -> ExpectedSpeedup:
        """Return the expected speed-up, from the time per token including the prefills that block all requests."""
        tokens, steps = self.acceptance[draft_len].token_weighted, self.response_len - 1
        prefill_alone, prefill_drafting = (self._prefill(batch, side) / steps for side in (0, 1))
        alone, step = self.step_seconds(batch, 0) + prefill_alone, self.step_seconds(batch, draft_len)

        def times(step_tokens: float) -> float:
            return alone / (step / step_tokens + prefill_drafting)

        return ExpectedSpeedup(batch, draft_len, Estimate(times(tokens.value), times(tokens.low), times(tokens.high)))

    def idle(self, batch: int) -> float:
        """Return the expected speed-up with the drafter loaded but idle (it still prefills)."""
        seconds = self.step_seconds(batch, 0)
        alone, idle = (seconds + self._prefill(batch, side) / (self.response_len - 1) for side in (0, 1))
        return alone / idle

    def step_seconds(self, batch: int, draft_len: int) -> float:
        """Return the seconds of a step, interpolated linearly between measured draft lengths and concurrencies."""

        def at_batch(rows: int) -> float:
            by_len = {length: seconds for (each, length), seconds in self.seconds.items() if each == rows}
            return _on_line(by_len, draft_len)

        return _on_line({rows: at_batch(rows) for rows in self.batches}, batch)

    def _prefill(self, batch: int, side: int) -> float:
        return _on_line({rows: pair[side] for rows, pair in self.prefills.items()}, batch) if self.prefills else 0.0


def _on_line(known: Mapping[int, float], at: int) -> float:
    """Return the value at `at`, interpolated linearly between the adjacent known values."""
    if at in known:
        return known[at]
    low, high = next(pair for pair in pairwise(sorted(known)) if pair[0] < at < pair[1])
    share = (at - low) / (high - low)
    return known[low] * (1 - share) + known[high] * share


def least_seconds(samples: Mapping[Case, Sequence[float]]) -> dict[Case, float]:
    """Return the minimum seconds of each case, because other load on the machine only adds time.

    More draft tokens or rows never take less time. A case that took longer than a larger case was disturbed in every
    round, so it gets the minimum of the larger case.
    """
    return {
        (rows, draft_len): min(
            min(seconds) for (more, longer), seconds in samples.items() if more >= rows and longer >= draft_len
        )
        for rows, draft_len in samples
    }


def dump_measured(measured: CandidateMeasurements) -> Any:
    """Return measurements as JSON values, without the candidate; inverse of `read_measured`."""
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


@dataclass(frozen=True)
class Schedule:
    """Pairs of (maximum concurrency, draft length); nothing is drafted above the last concurrency.

    `at` is the expected speed-up at the requested concurrency. If `pairs` is empty, `why_not` is the reason.
    """

    pairs: tuple[tuple[int, int], ...] = ()
    at: ExpectedSpeedup | None = None
    why_not: str = ""


def choose_schedule(measured: CandidateMeasurements, batch: int) -> Schedule:
    """Return a candidate's schedule, which is empty if drafting does not pay at concurrency `batch`."""
    if not measured.candidate.takes_draft_len:
        return _unchanging(measured, batch)
    lens = [length for length in measured.acceptance if not _lost_below(measured, batch, length)]
    if not lens:
        lost = _lost_below(measured, batch, min(measured.acceptance))
        return Schedule(why_not=f"lower concurrencies would need the same draft length, and {_slow(lost)}")
    pairs = _pairs(measured, batch, lens)
    length = next((length for most, length in pairs if batch <= most), None)
    if length is None:
        return Schedule(why_not=_unsure(measured, batch))
    return Schedule(pairs, measured.speedup(batch, length))


def describe_concurrency(batch: int) -> str:
    """Return a label for a concurrency, such as "4 concurrent requests"."""
    return "one request at a time" if batch == 1 else f"{batch} concurrent requests"


def _unchanging(measured: CandidateMeasurements, batch: int) -> Schedule:
    """Return the schedule of a method whose options fix one draft length for all concurrencies."""
    length = max(measured.acceptance)
    at, loads = measured.speedup(batch, length), [measured.speedup(load, length) for load in measured.batches]
    if lost := _first_lost(loads):
        return Schedule(why_not=f"it drafts at every concurrency, and {_slow(lost)}")
    if at.expected.value < _clearly(measured, batch):
        return Schedule(why_not=_unsure(measured, batch))
    return Schedule(((loads[-1].batch, length),), at)


def _lost_below(measured: CandidateMeasurements, batch: int, length: int) -> ExpectedSpeedup | None:
    """Return the first concurrency below `batch` that is slower than the target alone with at least `length` tokens."""
    as_long = [each for each in measured.acceptance if each >= length]
    return _first_lost([_best_without_loss(measured, load, as_long) for load in _loads(measured) if load < batch])


def _best_without_loss(measured: CandidateMeasurements, load: int, lens: Sequence[int]) -> ExpectedSpeedup:
    """Return `measured.best` at a concurrency, or the fastest length if that one is slower than the target alone."""
    best = measured.best(load, lens)
    if best.expected.value >= LOSES:
        return best
    return max((measured.speedup(load, length) for length in lens), key=lambda each: each.expected.value)


def _pairs(measured: CandidateMeasurements, batch: int, lens: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Return the best draft length up to each concurrency; `lens` are the possible lengths at `batch`.

    The schedule ends at the concurrency from which drafting is not clearly expected to pay; requiring certainty would
    lose most of the benefit. The length changes only if another one is expected to be clearly faster. Concurrencies
    below `batch` draft for the benefit of `batch`, as long as they are not slower than the target alone.
    """
    pairs: list[tuple[int, int]] = []
    wanted = measured.best(batch, lens).draft_len
    as_long = [length for length in measured.acceptance if length >= wanted]
    for load in _loads(measured):
        if load < batch:
            best, least = _best_without_loss(measured, load, as_long), LOSES
        else:
            best, least = measured.best(load, lens if load == batch else None), _clearly(measured, load)
        length = best.draft_len
        if best.expected.value < least:
            break
        if pairs:
            before = pairs[-1][1]
            good = least if length > before else max(least, best.expected.value / CHANGES)
            if measured.speedup(load, before).expected.value >= good:
                pairs.pop()
                length = before
            elif length > before:
                break
        pairs.append((load, length))
    return tuple(pairs)


def _clearly(measured: CandidateMeasurements, load: int) -> float:
    """Return the minimum expected speed-up for drafting at a concurrency for its own benefit."""
    return (PAYS if load == measured.batches[0] else GOES_ON) * measured.idle(load)


def _loads(measured: CandidateMeasurements) -> list[int]:
    """Return the measured concurrencies and the powers of two between them."""
    fewest, most = measured.batches[0], measured.batches[-1]
    between = (1 << power for power in range(fewest.bit_length(), most.bit_length()))
    return sorted({*measured.batches, *(each for each in between if each < most)})


def _first_lost(loads: Sequence[ExpectedSpeedup]) -> ExpectedSpeedup | None:
    return next((each for each in loads if each.expected.value < LOSES), None)


def _slow(lost: ExpectedSpeedup | None) -> str:
    return f"with {describe_concurrency(lost.batch)} it is {lost.expected.value:.2f} times as fast" if lost else ""


def _unsure(measured: CandidateMeasurements, batch: int) -> str:
    return f"an expected speed-up below {_clearly(measured, batch):.2f} is uncertain"


@dataclass(frozen=True)
class Recommendation:
    """The recommended candidate with its draft lengths, or the target alone."""

    candidate: ProfileCandidate | None  # absent if the target alone is fastest
    batch: int
    draft_len: int
    speedup: float  # expected speed-up at concurrency `batch`
    schedule: tuple[tuple[int, int], ...]  # (concurrency, draft_len) pairs; empty if one length fits all
    why: str
    proposal: Proposal = field(default_factory=lambda: Proposal(None))  # input of `decide`

    @property
    def speculation(self) -> dict[str, Any]:
        """Return the recipe's `speculation` section; without `draft_len`, the method's options define the length."""
        if self.candidate is None:
            return {"method": "none"}
        section: dict[str, Any] = {"method": self.candidate.method}
        if self.candidate.takes_draft_len:
            section["draft_len"] = self.draft_len
        if self.candidate.source:
            section["draft"] = dict(self.candidate.source)
        if self.candidate.options:
            section["options"] = self.candidate.options
        if self.schedule:
            section["schedule"] = [{"max_batch": batch, "draft_len": length} for batch, length in self.schedule]
        return section

    def as_dict(self) -> dict[str, Any]:
        return {
            "method": self.candidate.method if self.candidate else "none",
            "draft": self.candidate.draft if self.candidate else None,
            "draft_len": self.draft_len,
            "batch": self.batch,
            "speedup": round(self.speedup, 3),
            "schedule": [{"max_batch": batch, "draft_len": length} for batch, length in self.schedule],
            "why": self.why,
            "speculation": self.speculation,
        }


def rate_candidate(measured: CandidateMeasurements, batch: int) -> str:
    """Return the rating of a candidate: "pays", "train", "harmful" or "too slow".

    A candidate that pays is never harmful, whatever its acceptance rate: deep trees draft many tokens at little cost.
    """
    best = measured.best(batch)
    rate = measured.acceptance[best.draft_len].depth_rate
    if best.expected.low >= PAYS:
        return "train" if rate < TRAINABLE else "pays"
    return "harmful" if rate < HARMFUL else "too slow"


def recommend(
    found: Sequence[CandidateMeasurements], batch: int, own: ProfileCandidate | None = None
) -> Recommendation:
    """Recommend the candidate expected to be fastest at concurrency `batch` and not slower at other concurrencies.

    `own` is the recipe's current candidate, if known.
    """
    plans = [
        (each, choose_schedule(each, batch))
        for each in sorted(found, key=lambda each: -each.best(batch).expected.value)
    ]
    paying = [(each, plan, plan.at) for each, plan in plans if plan.at and plan.at.expected.low >= PAYS]
    tried = {each.candidate.name: _option(each, each.best(batch)) for each in reversed(found)}
    now, load = tried.get(own.name) if own else None, describe_load({"concurrency": batch})
    if not paying:
        return _target_alone(plans, batch, now, load)
    first, plan, at = max(paying, key=lambda each: each[2].expected.value)
    lens = {length for _, length in plan.pairs}
    schedule = plan.pairs if len(lens) > 1 or plan.pairs[-1][0] < max(first.batches) else ()
    others = [each for each in plans if each[0] is not first]
    chosen = _option(first, at)
    by_load = [(each, first.best(each).expected.value) for each in first.batches]
    proposal = Proposal(chosen, chosen, now, at.draft_len, load, by_load)
    why = _why(first, at, others)
    return Recommendation(first.candidate, batch, max(lens), at.expected.value, schedule, why, proposal)


def _option(measured: CandidateMeasurements, at: ExpectedSpeedup) -> DraftOption:
    return DraftOption(measured.candidate.name, RelativeSpeed(at.expected.value, at.expected.low, at.expected.high))


def _target_alone(
    plans: Sequence[tuple[CandidateMeasurements, Schedule]], batch: int, now: DraftOption | None, load: str
) -> Recommendation:
    """Recommend the target alone, with the reason against the best candidate."""
    best, why = None, "no candidate was measured"
    against = why
    if plans:
        first, plan = plans[0]
        at = first.best(batch)
        best, against = _option(first, at), plan.why_not
        if at.expected.value < PAYS:
            against = f"that is less than {PAYS:g} times, which is within noise"
        elif at.expected.low < PAYS:
            against = f"the lower end of that interval is below {PAYS:g}, so it may not be faster"
        why = f"the best candidate, {first.candidate.name}, is expected to be {at.expected} times as fast"
        why += f" with {describe_concurrency(batch)}, but {against}" if against else ""
    proposal = Proposal(None, best, now, load=load, why_alone=against)
    return Recommendation(None, batch, 0, 1.0, (), why, proposal)


def _why(
    first: CandidateMeasurements, at: ExpectedSpeedup, others: Sequence[tuple[CandidateMeasurements, Schedule]]
) -> str:
    acceptance = first.acceptance[at.draft_len]
    why = f"{at.expected} times as fast as the target alone with {describe_concurrency(at.batch)}, drafting"
    why += f" {at.draft_len} tokens per step, of which {acceptance.depth_rate:.0%} are accepted"
    if others:
        second, plan = others[0]
        why += f"; the next best is {second.candidate.name}, {second.best(at.batch).expected.value:.2f} times"
        why += f", but {plan.why_not}" if plan.why_not else ""
    return why
