# SPDX-License-Identifier: Apache-2.0
"""Two saved benchmarks: how many times as fast the second is, how sure that is, and whether it is good enough.

Where both have a baseline, their speed-ups over it are compared: the target alone is the same in both, and what the
machine was doing then cancels out. Else the served arms themselves are, and their interval leaves room for the
difference of the two machines' fixed work. Rounds of one number asked the same prompts, so those that both have are
compared: one run may have ended sooner.

A difference is one that an interval of 99 % shows, for all loads together (Bonferroni): of a hundred comparisons of the
same thing with itself one may be wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from trtspec.bench.load.arrival import LARGER_IS_BETTER
from trtspec.bench.load.intervals import Ratio, ratio_between
from trtspec.bench.load.rounds import MAX_FAILED
from trtspec.bench.load.schema import SavedLoad, SavedPoint
from trtspec.core.errors import TrtspecError

FORMAT_VERSION, KIND = 1, "load_comparison"
CONFIDENCE = 0.99
SPEEDUP, SERVED, BASELINE = "speedup", "served", "baseline"
VERDICTS = {1: "faster", -1: "slower", 0: "no difference shown"}


@dataclass(frozen=True)
class Compared:
    """One load in both: `ratio` is how many times as fast B is, by what `by` names."""

    load: dict[str, Any]
    judged_by: str
    by: str
    ratio: Ratio
    served: Ratio
    baseline: Ratio | None

    def as_dict(self) -> dict[str, Any]:
        """Return its part of the document."""
        return {
            "load": self.load,
            "judged_by": self.judged_by,
            "compared": self.by,
            "b_to_a": self.ratio.as_dict(),
            "verdict": VERDICTS[self.ratio.shows],
            "served_b_to_a": self.served.as_dict(),
            "baseline_b_to_a": self.baseline.as_dict() if self.baseline else None,
        }


@dataclass(frozen=True)
class Gate:
    """The least ratio that is good enough. It fails where an interval shows less, and is open where it cannot tell.

    It fails too where loads are `unfit` to be compared, for these reasons.
    """

    least: float
    ratios: tuple[Ratio, ...]
    unfit: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Return whether no ratio is shown to be too small."""
        return not self.unfit and all(ratio.high >= self.least for ratio in self.ratios)

    @property
    def is_decided(self) -> bool:
        """Return whether every interval is on one side of the limit."""
        return all(ratio.low >= self.least or ratio.high < self.least for ratio in self.ratios)

    def as_dict(self) -> dict[str, Any]:
        """Return its part of a document."""
        return {"min_ratio": self.least, "ok": self.ok, "is_decided": self.is_decided, "unfit": [*self.unfit]}


def compare(a: SavedLoad, b: SavedLoad, *, absolutely: bool = False) -> list[Compared]:
    """Compare the loads that both have; raises TrtspecError where they asked other things or another way.

    `absolutely` compares the served arms also where there are baselines.
    """
    pairs = [(ours, theirs) for ours in a.points for theirs in b.points if ours.load == theirs.load]
    if reasons := list(_differences(a, b, pairs)):
        hint = "measure both with the same prompts, lengths, seed and loads"
        raise TrtspecError(f"the two cannot be compared: {'; '.join(reasons)}", hint=hint)
    confidence = confidence_for(len(pairs))
    machines = b.noise.median_work_ms / a.noise.median_work_ms
    return [_compared(ours, theirs, confidence, machines, absolutely) for ours, theirs in pairs]


def confidence_for(loads: int) -> float:
    """Return the confidence of each load's interval where so many are judged together."""
    return 1 - (1 - CONFIDENCE) / loads


def _differences(a: SavedLoad, b: SavedLoad, pairs: list[tuple[SavedPoint, SavedPoint]]) -> Iterator[str]:
    """Yield why two documents say nothing about each other."""
    if a.driver != b.driver:
        yield f"{a.driver} measured one and {b.driver} the other"
    if a.workload.sha256 != b.workload.sha256:
        sources = {a.workload.source, b.workload.source}
        yield f"other prompts, lengths or seeds were asked ({' and '.join(sorted(sources))})"
    if not pairs:
        yield "they have no load in common"
    for ours, theirs in pairs:
        if ours.requests_per_round != theirs.requests_per_round:
            yield f"rounds of {ours.requests_per_round} and of {theirs.requests_per_round} requests"
    for name, document in (("A", a), ("B", b)):
        failed = max(arm.failed_share for point in document.points for arm in point.arms.values())
        if failed > MAX_FAILED:
            yield f"{failed:.0%} of the requests failed in {name}"


def _compared(a: SavedPoint, b: SavedPoint, confidence: float, machines: float, absolutely: bool) -> Compared:
    served = _between(a, b, SERVED, confidence)
    if served is None:
        raise TrtspecError("the two cannot be compared: no round of both has answers of the server")
    ours, theirs = _shared(a.speedups(), b.speedups())
    if ours and not absolutely:
        ratio = ratio_between(ours, theirs, confidence)
        return Compared(dict(b.load), b.judged_by, SPEEDUP, ratio, served, _between(a, b, BASELINE, confidence))
    return Compared(dict(b.load), b.judged_by, SERVED, served.widened(machines), served, None)


def _between(a: SavedPoint, b: SavedPoint, arm: str, confidence: float) -> Ratio | None:
    """Return how many times as fast an arm is in B."""
    if arm not in a.arms or arm not in b.arms:
        return None
    before, after = _shared(*(point.arms[arm].values(point.judged_by) for point in (a, b)))
    if not before:
        return None
    found = ratio_between(before, after, confidence)
    return found if LARGER_IS_BETTER[b.judged_by] else found.inverse()


def _shared(before: Sequence[float | None], after: Sequence[float | None]) -> tuple[list[float], list[float]]:
    """Return the values of the rounds that both have, by their numbers."""
    pairs = [(ours, theirs) for ours, theirs in zip(before, after, strict=False) if ours and theirs]
    return [ours for ours, _ in pairs], [theirs for _, theirs in pairs]
