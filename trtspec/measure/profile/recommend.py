# SPDX-License-Identifier: Apache-2.0
"""What to do with what was measured: which method and draft, how many tokens, and for how many requests at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trtspec.measure.profile.candidate import Candidate
from trtspec.measure.profile.measured import Measured, Speedup
from trtspec.measure.profile.schedule import PAYS, Schedule, requests_at_once, schedule_of

# Acceptance rates below which a draft that does not pay is harmful, and one that pays is worth training.
HARMFUL, TRAINABLE = 0.5, 0.6


@dataclass(frozen=True)
class Recommendation:
    """The recipe's section to use: `candidate` is None where the target alone is fastest.

    `speedup` is expected of the section at `batch` requests at once; `schedule` are pairs (requests, draft_len) where
    the best length depends on them, empty where one will do.
    """

    candidate: Candidate | None
    batch: int
    draft_len: int
    speedup: float
    schedule: tuple[tuple[int, int], ...]
    why: str

    @property
    def speculation(self) -> dict[str, Any]:
        """Return the recipe's `speculation`; the method decides how much is drafted where it has no `draft_len`."""
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
        """Return its keys of the document."""
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


def verdict(measured: Measured, batch: int) -> str:
    """Return what is to be thought of a candidate: "pays", "train", "harmful" or "too slow".

    What pays is not harmful, however little of it is accepted: of a deep tree much is drafted at little cost.
    """
    best = measured.best(batch)
    rate = measured.acceptance[best.draft_len].depth_rate
    if best.expected.low >= PAYS:
        return "train" if rate < TRAINABLE else "pays"
    return "harmful" if rate < HARMFUL else "too slow"


def recommend(found: Sequence[Measured], batch: int) -> Recommendation:
    """Return the candidate that is expected to be fastest with so many requests at once, and never slow with others."""
    plans = [
        (each, schedule_of(each, batch)) for each in sorted(found, key=lambda each: -each.best(batch).expected.value)
    ]
    paying = [(each, plan, plan.at) for each, plan in plans if plan.at and plan.at.expected.low >= PAYS]
    if not paying:
        return Recommendation(None, batch, 0, 1.0, (), _alone(plans, batch))
    first, plan, at = max(paying, key=lambda each: each[2].expected.value)
    lens = {length for _, length in plan.pairs}
    schedule = plan.pairs if len(lens) > 1 or plan.pairs[-1][0] < max(first.batches) else ()
    others = [each for each in plans if each[0] is not first]
    return Recommendation(first.candidate, batch, max(lens), at.expected.value, schedule, _why(first, at, others))


def _alone(plans: Sequence[tuple[Measured, Schedule]], batch: int) -> str:
    """Return why the target alone is recommended, by the first of the plans."""
    if not plans:
        return "nothing was measured that could draft"
    first, plan = plans[0]
    best = first.best(batch)
    said = f"the best of what was tried, {first.candidate.name}, makes it {best.expected} times as fast"
    if not plan.why_not or best.expected.low < PAYS:
        return said
    return f"{said} with {requests_at_once(batch)}, but {plan.why_not}"


def _why(first: Measured, at: Speedup, others: Sequence[tuple[Measured, Schedule]]) -> str:
    acceptance = first.acceptance[at.draft_len]
    why = f"{at.expected} times as fast as the target alone with {requests_at_once(at.batch)}, drafting {at.draft_len}"
    why += f" tokens a step, of which {acceptance.depth_rate:.0%} are accepted"
    if others:
        second, plan = others[0]
        why += f"; next is {second.candidate.name}, {second.best(at.batch).expected.value:.2f} times"
        why += f", but {plan.why_not}" if plan.why_not else ""
    return why
