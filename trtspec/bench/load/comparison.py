# SPDX-License-Identifier: Apache-2.0
"""Comparison of two saved load tests, and a gate on the resulting ratio.

If both have a baseline, their speed-ups over it are compared. The target alone is the same in both, so differences
between the machines cancel out. Otherwise the served arms are compared, and the intervals are widened by the difference
between the machines' times for fixed work. Rounds with the same number sent the same prompts, so only rounds that exist
in both are compared.

A difference must be shown by a 99 % interval over all loads together (Bonferroni), so about one in a hundred
comparisons of identical runs is wrong.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtspec.bench.documents import MAX_BYTES, MAX_VALUES
from trtspec.bench.load.arrivals import LARGER_IS_BETTER
from trtspec.bench.load.client import BASELINE, SERVED
from trtspec.bench.load.intervals import RatioInterval, ratio_between
from trtspec.bench.load.rounds import MAX_FAILED
from trtspec.core.errors import TrtspecError
from trtspec.planning.documents import LoadDocument, LoadPoint, read_values, validated

HINT = "save one with: trtspec bench NAME --concurrency 1,4 --json > FILE.json"

FORMAT_VERSION, KIND = 1, "load_comparison"
CONFIDENCE = 0.99
SPEEDUP = "speedup"
VERDICTS = {1: "faster", -1: "slower", 0: "no difference shown"}


def read_saved(path: Path) -> LoadDocument:
    """Read the document of a load test; raises TrtspecError if the file is invalid."""
    values, _ = read_values(path, HINT, MAX_BYTES, MAX_VALUES)
    if values.get("kind") != "load":
        raise TrtspecError("not a document of a load benchmark", where=str(path), hint=HINT)
    return validated(LoadDocument, values, path, HINT)


@dataclass(frozen=True)
class LoadComparison:
    """Comparison at one load: `ratio` is the speed of document B relative to A; `by` is "speedup" or "served"."""

    load: dict[str, Any]
    judged_by: str
    by: str
    ratio: RatioInterval
    served: RatioInterval
    baseline: RatioInterval | None

    def as_dict(self) -> dict[str, Any]:
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
class RatioGate:
    """A lower limit for ratios: it fails if an interval is below the limit, and is undecided if one includes it.

    The gate also fails if results cannot be compared, for the reasons in `unfit`.
    """

    least: float
    ratios: tuple[RatioInterval, ...]
    unfit: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Return True unless an interval is below the limit or results cannot be compared."""
        return not self.unfit and all(ratio.high >= self.least for ratio in self.ratios)

    @property
    def is_decided(self) -> bool:
        """Return True if every interval is entirely on one side of the limit."""
        return all(ratio.low >= self.least or ratio.high < self.least for ratio in self.ratios)

    def as_dict(self) -> dict[str, Any]:
        return {"min_ratio": self.least, "ok": self.ok, "is_decided": self.is_decided, "unfit": [*self.unfit]}


def compare(a: LoadDocument, b: LoadDocument, *, absolutely: bool = False) -> list[LoadComparison]:
    """Compare two load tests at all common loads; raises TrtspecError if their workloads or methods differ.

    With `absolutely`, the served arms are compared even if both documents have a baseline.
    """
    pairs = [(ours, theirs) for ours in a.points for theirs in b.points if ours.load == theirs.load]
    if reasons := list(_differences(a, b, pairs)):
        hint = "measure both with the same prompts, lengths, seed and loads"
        raise TrtspecError(f"the two cannot be compared: {'; '.join(reasons)}", hint=hint)
    confidence = confidence_for(len(pairs))
    machines = b.noise.median_work_ms / a.noise.median_work_ms
    return [_compared(ours, theirs, confidence, machines, absolutely) for ours, theirs in pairs]


def confidence_for(loads: int) -> float:
    """Return the confidence level of each interval such that `loads` intervals together have CONFIDENCE."""
    return 1 - (1 - CONFIDENCE) / loads


def _differences(a: LoadDocument, b: LoadDocument, pairs: list[tuple[LoadPoint, LoadPoint]]) -> Iterator[str]:
    if a.driver != b.driver:
        yield f"A was measured by {a.driver}, B by {b.driver}"
    if a.workload.sha256 != b.workload.sha256:
        sources = {a.workload.source, b.workload.source}
        yield f"prompts, lengths or seeds differ ({' and '.join(sorted(sources))})"
    if a.simulated != b.simulated:
        yield "their simulated acceptance differs"
    if not pairs:
        yield "they do not share a load"
    for ours, theirs in pairs:
        if ours.requests_per_round != theirs.requests_per_round:
            yield f"rounds have {ours.requests_per_round} and {theirs.requests_per_round} requests"
    for name, document in (("A", a), ("B", b)):
        arms = [arm.rounds for point in document.points for arm in point.arms.values()]
        sums = [(sum(each.failed for each in arm), sum(each.requests for each in arm)) for arm in arms]
        failed = max(failed / max(1, failed + answered) for failed, answered in sums)
        if failed > MAX_FAILED:
            yield f"{failed:.0%} of the requests failed in {name}"


def _compared(a: LoadPoint, b: LoadPoint, confidence: float, machines: float, absolutely: bool) -> LoadComparison:
    served = _between(a, b, SERVED, confidence)
    if served is None:
        raise TrtspecError("the two cannot be compared: they share no round with complete responses")
    load = b.load.model_dump(exclude_none=True)
    ours, theirs = _shared(_speedups(a), _speedups(b))
    if ours and not absolutely:
        ratio = ratio_between(ours, theirs, confidence)
        return LoadComparison(load, b.judged_by, SPEEDUP, ratio, served, _between(a, b, BASELINE, confidence))
    return LoadComparison(load, b.judged_by, SERVED, served.widened(machines), served, None)


def _between(a: LoadPoint, b: LoadPoint, arm: str, confidence: float) -> RatioInterval | None:
    """Return the speed of an arm in document B relative to A, or None without common rounds."""
    if arm not in a.arms or arm not in b.arms:
        return None
    before, after = _shared(*(_by_round(point, arm) for point in (a, b)))
    if not before:
        return None
    found = ratio_between(before, after, confidence)
    return found if LARGER_IS_BETTER[b.judged_by] else found.inverse()


def _speedups(point: LoadPoint) -> list[float | None]:
    """Return the speed-up of each round, or None for a round in which it is unknown."""
    if SERVED not in point.arms or BASELINE not in point.arms:
        return []
    pairs = zip(_by_round(point, SERVED), _by_round(point, BASELINE), strict=False)
    ratios = [ours / theirs if ours and theirs else None for ours, theirs in pairs]
    return ratios if LARGER_IS_BETTER[point.judged_by] else [ratio and 1 / ratio for ratio in ratios]


def _by_round(point: LoadPoint, arm: str) -> list[float | None]:
    """Return the metric that compares the arms for each round, or None for a round without responses."""
    return [getattr(each, point.judged_by) for each in point.arms[arm].rounds]


def _shared(before: Sequence[float | None], after: Sequence[float | None]) -> tuple[list[float], list[float]]:
    """Return the values of the rounds that are known in both documents, by round number."""
    pairs = [(ours, theirs) for ours, theirs in zip(before, after, strict=False) if ours and theirs]
    return [ours for ours, _ in pairs], [theirs for _, theirs in pairs]
