# SPDX-License-Identifier: Apache-2.0
"""Recommend a method, a draft and draft lengths per concurrency from the measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from trtspec.bench.profile.candidate import ProfileCandidate
from trtspec.bench.profile.measured import CandidateMeasurements, ExpectedSpeedup
from trtspec.bench.profile.schedule import PAYS, Schedule, choose_schedule, describe_concurrency
from trtspec.bench.verdict import DraftOption, Proposal, RelativeSpeed

# Below these acceptance rates, a draft that does not pay is harmful, and one that pays is worth training.
HARMFUL, TRAINABLE = 0.5, 0.6


@dataclass(frozen=True)
class Recommendation:
    """The recommended recipe section: `candidate` is None if the target alone is fastest.

    `speedup` is expected at concurrency `batch`; `schedule` has pairs (concurrency, draft_len), empty if one length
    fits all. `proposal` is the input of the verdict.
    """

    candidate: ProfileCandidate | None
    batch: int
    draft_len: int
    speedup: float
    schedule: tuple[tuple[int, int], ...]
    why: str
    proposal: Proposal = field(default_factory=lambda: Proposal(None))

    @property
    def speculation(self) -> dict[str, Any]:
        """Return the recipe's `speculation` section; without `draft_len`, the method chooses the draft length."""
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
        """Return the JSON fields."""
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


def candidate_verdict(measured: CandidateMeasurements, batch: int) -> str:
    """Return the verdict on a candidate: "pays", "train", "harmful" or "too slow".

    A candidate that pays is not harmful at any acceptance: deep trees draft many tokens at little cost.
    """
    best = measured.best(batch)
    rate = measured.acceptance[best.draft_len].depth_rate
    if best.expected.low >= PAYS:
        return "train" if rate < TRAINABLE else "pays"
    return "harmful" if rate < HARMFUL else "too slow"


def recommend(
    found: Sequence[CandidateMeasurements], batch: int, own: ProfileCandidate | None = None
) -> Recommendation:
    """Return the candidate that is expected to be fastest at concurrency `batch` and not slower at others.

    `own` is the recipe's current candidate, if known.
    """
    plans = [
        (each, choose_schedule(each, batch))
        for each in sorted(found, key=lambda each: -each.best(batch).expected.value)
    ]
    paying = [(each, plan, plan.at) for each, plan in plans if plan.at and plan.at.expected.low >= PAYS]
    tried = {each.candidate.name: _option(each, each.best(batch)) for each in reversed(found)}
    now = tried.get(own.name) if own else None
    if not paying:
        best = _option(plans[0][0], plans[0][0].best(batch)) if plans else None
        proposal = Proposal(None, best, now, load=_load(batch), why_alone=_why_alone(plans, batch))
        return Recommendation(None, batch, 0, 1.0, (), _alone(plans, batch), proposal)
    first, plan, at = max(paying, key=lambda each: each[2].expected.value)
    lens = {length for _, length in plan.pairs}
    schedule = plan.pairs if len(lens) > 1 or plan.pairs[-1][0] < max(first.batches) else ()
    others = [each for each in plans if each[0] is not first]
    chosen = _option(first, at)
    by_load = [(load, first.best(load).expected.value) for load in first.batches]
    proposal = Proposal(chosen, chosen, now, at.draft_len, _load(batch), by_load)
    why = _why(first, at, others)
    return Recommendation(first.candidate, batch, max(lens), at.expected.value, schedule, why, proposal)


def _option(measured: CandidateMeasurements, at: ExpectedSpeedup) -> DraftOption:
    return DraftOption(measured.candidate.name, RelativeSpeed(at.expected.value, at.expected.low, at.expected.high))


def _load(batch: int) -> str:
    return "1 request" if batch == 1 else f"{batch} concurrent requests"


def _why_alone(plans: Sequence[tuple[CandidateMeasurements, Schedule]], batch: int) -> str:
    """Return why the best candidate is not recommended."""
    if not plans:
        return "no candidate was measured"
    first, plan = plans[0]
    expected = first.best(batch).expected
    if expected.value < PAYS:
        return f"that is less than {PAYS:g} times, which is within noise"
    if expected.low < PAYS:
        return f"the lower end of that interval is below {PAYS:g}, so it may not be faster"
    return plan.why_not


def _alone(plans: Sequence[tuple[CandidateMeasurements, Schedule]], batch: int) -> str:
    """Return why the target alone is recommended, based on the best plan."""
    if not plans:
        return "no candidate was measured"
    first, best = plans[0][0], plans[0][0].best(batch)
    said = f"the best candidate, {first.candidate.name}, is expected to be {best.expected} times as fast"
    why = _why_alone(plans, batch)
    return f"{said} with {describe_concurrency(batch)}, but {why}" if why else said


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
