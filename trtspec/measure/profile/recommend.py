# SPDX-License-Identifier: Apache-2.0
"""What to do with what was measured: which method and draft, how many tokens, and for how many requests at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trtspec.measure.profile.candidate import Candidate
from trtspec.measure.profile.measured import Measured, Speedup

HARMFUL, TRAINABLE = 0.5, 0.6  # acceptance rates below which a draft costs more than it brings, or is worth training
PAYS = 1.02  # times as fast: less is within what a machine's noise makes of two equal runs
# Times as fast, for more requests than the fewest: what was expected of one token for many was up to 9 % too much
# (docs/log.md), and drafting in vain makes a server slower than its target alone.
GOES_ON = 1.05
CHANGES = 1.04  # times as fast as the length before: expectations were seen to err by 5 % (docs/log.md)


@dataclass(frozen=True)
class Recommendation:
    """The recipe's section to use: `candidate` is None where the target alone is fastest.

    `speedup` is expected at `batch` requests at once; `schedule` are pairs (requests, draft_len) where the best length
    depends on them, empty where one will do.
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
    """Return what is to be thought of a candidate: "pays", "train", "harmful" or "too slow"."""
    best = measured.best(batch)
    rate = measured.acceptance[best.draft_len].depth_rate
    if rate < HARMFUL:
        return "harmful"
    if best.expected.low < PAYS:
        return "too slow"
    return "train" if rate < TRAINABLE else "pays"


def recommend(found: Sequence[Measured], batch: int) -> Recommendation:
    """Return the candidate that is expected to be fastest with so many requests at once."""
    ranked = sorted(found, key=lambda each: -each.best(batch).expected.value)
    best = ranked[0].best(batch) if ranked else None
    if best is None or best.expected.low < PAYS:
        return Recommendation(None, batch, 0, 1.0, (), _alone(ranked, best))
    first = ranked[0]
    schedule = _schedule(first)
    lens = {length for _, length in schedule}
    only = schedule if len(lens) > 1 or not schedule or schedule[-1][0] < max(first.batches) else ()
    longest = max([best.draft_len, *lens])
    return Recommendation(first.candidate, batch, longest, best.expected.value, only, _why(ranked, best))


def _schedule(measured: Measured) -> tuple[tuple[int, int], ...]:
    """Return the best draft length up to each batch that was measured, and up to the powers of two between them.

    It ends where drafting is not clearly expected to pay: to wait until that is sure would give away what it mostly
    brings. The length changes only where another is expected to be clearly faster, as the one before is known to
    do well.
    """
    pairs: list[tuple[int, int]] = []
    fewest, most = measured.batches[0], measured.batches[-1]
    between = (1 << power for power in range(fewest.bit_length(), most.bit_length()))
    for batch in sorted({*measured.batches, *(each for each in between if each < most)}):
        best, least = measured.best(batch), (GOES_ON if pairs else PAYS) * measured.idle(batch)
        if best.expected.value < least:
            break
        length = best.draft_len
        if pairs:
            before = pairs[-1][1]
            kept = measured.speedup(batch, before).expected.value
            if kept >= max(least, best.expected.value / CHANGES) or length > before:
                pairs.pop()
                length = before
        pairs.append((batch, length))
    return tuple(pairs)


def _alone(ranked: Sequence[Measured], best: Speedup | None) -> str:
    if best is None:
        return "nothing was measured that could draft"
    return f"the best of what was tried, {ranked[0].candidate.name}, makes it {best.expected} times as fast"


def _why(ranked: Sequence[Measured], best: Speedup) -> str:
    first = ranked[0]
    acceptance = first.acceptance[best.draft_len]
    why = f"{best.expected} times as fast as the target alone with {_requests(best.batch)}, drafting {best.draft_len}"
    why += f" tokens a step, of which {acceptance.depth_rate:.0%} are accepted"
    if len(ranked) > 1:
        second = ranked[1].best(best.batch)
        why += f"; next is {ranked[1].candidate.name}, {second.expected.value:.2f} times"
    return why


def _requests(batch: int) -> str:
    return "one request at a time" if batch == 1 else f"{batch} requests at once"
