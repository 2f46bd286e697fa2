# SPDX-License-Identifier: Apache-2.0
"""Compare two saved load benchmarks, and gate on the ratio.

If both have a baseline, their speed-ups over it are compared: the target alone is the same in both, so differences
between the machines cancel out. Otherwise the served arms are compared, and their intervals are widened by the
difference between the machines' fixed work. Rounds with the same number sent the same prompts, so the rounds that both
have are compared, even if one run ended earlier.

A difference must be shown by a 99 % interval over all loads together (Bonferroni), so one in a hundred comparisons of
identical runs may be wrong. Saved files are untrusted and limited in size before parsing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError

from trtspec.bench.documents import read_json
from trtspec.bench.load.arrivals import LARGER_IS_BETTER
from trtspec.bench.load.discovery import BASELINE, SERVED
from trtspec.bench.load.intervals import RatioInterval, ratio_between
from trtspec.bench.load.rounds import MAX_FAILED
from trtspec.checkpoints.safe_json import repr_short
from trtspec.core.diagnostics import simplify_pydantic_message
from trtspec.core.errors import TrtspecError

HINT = "save one with: trtspec bench NAME --concurrency 1,4 --json > FILE.json"

Positive = Annotated[float, Field(gt=0, lt=1e12)]
Count = Annotated[int, Field(ge=0, lt=10**12)]
Text = Annotated[str, Field(max_length=4000)]
FORMAT_VERSION, KIND = 1, "load_comparison"
CONFIDENCE = 0.99
SPEEDUP = "speedup"
VERDICTS = {1: "faster", -1: "slower", 0: "no difference shown"}


class SavedRound(BaseModel):
    """One round of one arm; its metrics are None without responses."""

    requests: Count
    failed: Count
    output_tokens_per_s: Positive | None = None
    mean_e2e_ms: Positive | None = None


class SavedArm(BaseModel):
    """An arm's rounds at one load."""

    rounds: Annotated[list[SavedRound], Field(min_length=1, max_length=100_000)]

    @property
    def failed_share(self) -> float:
        failed = sum(each.failed for each in self.rounds)
        return failed / max(1, failed + sum(each.requests for each in self.rounds))

    def values(self, judged_by: str) -> list[float | None]:
        """Return the metric `judged_by` of each round, None for a round without responses."""
        return [getattr(each, judged_by) for each in self.rounds]


class SavedPoint(BaseModel):
    """One load."""

    load: dict[Text, float | Text]
    requests_per_round: Count
    judged_by: Literal["output_tokens_per_s", "mean_e2e_ms"]
    arms: dict[Text, SavedArm]

    def speedups(self) -> list[float | None]:
        """Return each round's speed-up, None if unknown."""
        served, alone = self.arms.get(SERVED), self.arms.get(BASELINE)
        if served is None or alone is None:
            return []
        pairs = zip(served.values(self.judged_by), alone.values(self.judged_by), strict=False)
        ratios = [ours / theirs if ours and theirs else None for ours, theirs in pairs]
        return ratios if LARGER_IS_BETTER[self.judged_by] else [ratio and 1 / ratio for ratio in ratios]


class SavedWorkload(BaseModel):
    sha256: Text
    source: Text
    max_tokens: Count


class SavedNoise(BaseModel):
    median_work_ms: Positive


class SavedLoad(BaseModel):
    format_version: Literal[1]
    kind: Literal["load"]
    driver: Text
    workload: SavedWorkload
    noise: SavedNoise
    points: Annotated[list[SavedPoint], Field(min_length=1, max_length=1000)]


def read_saved(path: Path) -> SavedLoad:
    """Return a saved document; raise TrtspecError if the file is invalid."""
    _, values = read_json(path, HINT)
    if values.get("kind") != "load":
        raise TrtspecError("not a document of a load benchmark", where=str(path), hint=HINT)
    try:
        return SavedLoad.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = repr_short(".".join(map(str, first["loc"])))
        raise TrtspecError(f"{where}: {simplify_pydantic_message(first['msg'])}", where=str(path), hint=HINT) from None


@dataclass(frozen=True)
class LoadComparison:
    """One load in both documents: `ratio` is the speed of B relative to A, measured by `by`."""

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
    """A lower limit for ratios. It fails if an interval is below the limit, and is undecided if one includes it.

    It also fails if results are `unfit` for comparison, for the reasons given.
    """

    least: float
    ratios: tuple[RatioInterval, ...]
    unfit: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Return whether no ratio is shown to be below the limit."""
        return not self.unfit and all(ratio.high >= self.least for ratio in self.ratios)

    @property
    def is_decided(self) -> bool:
        """Return whether every interval is on one side of the limit."""
        return all(ratio.low >= self.least or ratio.high < self.least for ratio in self.ratios)

    def as_dict(self) -> dict[str, Any]:
        return {"min_ratio": self.least, "ok": self.ok, "is_decided": self.is_decided, "unfit": [*self.unfit]}


def compare(a: SavedLoad, b: SavedLoad, *, absolutely: bool = False) -> list[LoadComparison]:
    """Compare the loads that both documents have; raise TrtspecError if their workloads or methods differ.

    `absolutely` compares the served arms even if there are baselines.
    """
    pairs = [(ours, theirs) for ours in a.points for theirs in b.points if ours.load == theirs.load]
    if reasons := list(_differences(a, b, pairs)):
        hint = "measure both with the same prompts, lengths, seed and loads"
        raise TrtspecError(f"the two cannot be compared: {'; '.join(reasons)}", hint=hint)
    confidence = confidence_for(len(pairs))
    machines = b.noise.median_work_ms / a.noise.median_work_ms
    return [_compared(ours, theirs, confidence, machines, absolutely) for ours, theirs in pairs]


def confidence_for(loads: int) -> float:
    """Return the confidence level of each interval when `loads` of them are evaluated together."""
    return 1 - (1 - CONFIDENCE) / loads


def _differences(a: SavedLoad, b: SavedLoad, pairs: list[tuple[SavedPoint, SavedPoint]]) -> Iterator[str]:
    """Yield the reasons why two documents cannot be compared."""
    if a.driver != b.driver:
        yield f"A was measured by {a.driver}, B by {b.driver}"
    if a.workload.sha256 != b.workload.sha256:
        sources = {a.workload.source, b.workload.source}
        yield f"prompts, lengths or seeds differ ({' and '.join(sorted(sources))})"
    if not pairs:
        yield "they do not share a load"
    for ours, theirs in pairs:
        if ours.requests_per_round != theirs.requests_per_round:
            yield f"rounds have {ours.requests_per_round} and {theirs.requests_per_round} requests"
    for name, document in (("A", a), ("B", b)):
        failed = max(arm.failed_share for point in document.points for arm in point.arms.values())
        if failed > MAX_FAILED:
            yield f"{failed:.0%} of the requests failed in {name}"


def _compared(a: SavedPoint, b: SavedPoint, confidence: float, machines: float, absolutely: bool) -> LoadComparison:
    served = _between(a, b, SERVED, confidence)
    if served is None:
        raise TrtspecError("the two cannot be compared: they share no round with complete responses")
    ours, theirs = _shared(a.speedups(), b.speedups())
    if ours and not absolutely:
        ratio = ratio_between(ours, theirs, confidence)
        return LoadComparison(dict(b.load), b.judged_by, SPEEDUP, ratio, served, _between(a, b, BASELINE, confidence))
    return LoadComparison(dict(b.load), b.judged_by, SERVED, served.widened(machines), served, None)


def _between(a: SavedPoint, b: SavedPoint, arm: str, confidence: float) -> RatioInterval | None:
    """Return the speed of an arm in B relative to A."""
    if arm not in a.arms or arm not in b.arms:
        return None
    before, after = _shared(*(point.arms[arm].values(point.judged_by) for point in (a, b)))
    if not before:
        return None
    found = ratio_between(before, after, confidence)
    return found if LARGER_IS_BETTER[b.judged_by] else found.inverse()


def _shared(before: Sequence[float | None], after: Sequence[float | None]) -> tuple[list[float], list[float]]:
    """Return the values of the rounds that both have, by number."""
    pairs = [(ours, theirs) for ours, theirs in zip(before, after, strict=False) if ours and theirs]
    return [ours for ours, _ in pairs], [theirs for _, theirs in pairs]
