# SPDX-License-Identifier: Apache-2.0
"""Load test over a list of loads; at each load, both arms alternate until the comparison is precise enough.

A round sends the same requests to each arm back to back. The order alternates, so that warm-up of the machine or of
caches does not favor one arm. Between rounds, a fixed amount of work is timed to measure the noise of the client's
machine, which also affects servers on the same machine. The raw samples can be written as JSON Lines, one line per
request.
"""

from __future__ import annotations

import hashlib
import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from trtspec.bench.load.arrivals import LARGER_IS_BETTER, THROUGHPUT, ArrivalProcess
from trtspec.bench.load.client import (
    BASELINE,
    SERVED,
    TIMEOUT_S,
    Counters,
    Endpoint,
    LoadClient,
    ServerAddress,
    clock,
    find_arms,
    load_client,
    read_counters,
    runner,
)
from trtspec.bench.load.intervals import RatioInterval, ratio_of_rounds
from trtspec.bench.load.rounds import MAX_FAILED, AskRound, LoadWorkload, Round
from trtspec.core.errors import DeployError, GateNotMet, TrtspecError
from trtspec.core.files import describe_read_error
from trtspec.core.registry import find_extension

NOISE_WORK = bytes(1 << 20)
NOISE_REPEATS = 16
NOISY = 0.1  # spread above which the document has a warning
DRIVER = "trtspec"
OnProgress = Callable[[str, int, int], None]


def work_ms() -> float:
    """Return the milliseconds that a fixed amount of hashing takes: about ten."""
    started = time.perf_counter()
    digest = hashlib.sha256()
    for _ in range(NOISE_REPEATS):
        digest.update(NOISE_WORK)
    digest.digest()
    return 1000 * (time.perf_counter() - started)


def summarize_noise(samples_ms: Sequence[float]) -> dict[str, Any]:
    """Return the median of work times, and as `spread` their interquartile range divided by the median."""
    median = statistics.median(samples_ms)
    low, _, high = statistics.quantiles(samples_ms, n=4) if len(samples_ms) > 1 else (median,) * 3
    return {
        "work_ms": [round(each, 3) for each in samples_ms],
        "median_work_ms": round(median, 3),
        "spread": round((high - low) / median, 4),
    }


def samples_file(path: Path | None) -> AbstractContextManager[TextIO | None]:
    """Open the file for raw samples, if one is requested; raises TrtspecError if it cannot be opened."""
    try:
        return path.open("w", encoding="utf-8") if path else nullcontext()
    except OSError as error:
        hint = "choose another file for --samples-out"
        raise TrtspecError(describe_read_error(error), where=str(path), hint=hint) from None


def write_samples(file: TextIO, load: ArrivalProcess, number: int, arm: str, done: Round) -> None:
    for place, sample in enumerate(done.samples):
        where = {"load": load.as_dict(), "round": number, "arm": arm, "request": place}
        file.write(json.dumps({**where, **sample.as_dict()}) + "\n")  # ASCII: servers may send lone surrogates
    file.flush()


@dataclass(frozen=True)
class StopRule:
    """Conditions that end the measurement of a load or of the whole sweep."""

    least_rounds: int = 3
    most_rounds: int = 12
    interval: float | None = 0.05  # sufficient relative half-width of the interval, or None for `most_rounds`
    duration_s: float | None = None  # limit for each load; the first round is always completed
    requests: int | None = None  # requests of a round, or None for the load's default
    until_crossover: bool = False  # end the sweep at the first load whose interval shows that speculation is slower


@dataclass(frozen=True)
class LoadPlan:
    """Plan of a load test; without a `baseline`, the served server also runs the target alone, if it can."""

    served: ServerAddress
    baseline: ServerAddress | None
    workload: LoadWorkload
    loads: Sequence[ArrivalProcess]
    effort: StopRule = field(default_factory=StopRule)
    timeout_s: float = TIMEOUT_S
    driver: str = DRIVER
    tokenizer: Path | None = None  # directory of the tokenizer, which some drivers need
    is_judged: bool = False  # a gate requires the speed-up, and therefore a baseline


@dataclass
class Point:
    """Measurements at one load: the rounds and draft counters of each arm, and the noise between rounds."""

    load: ArrivalProcess
    requests: int
    rounds: dict[str, list[Round]]
    counters: dict[str, Counters] = field(default_factory=dict)
    work_ms: list[float] = field(default_factory=list)

    @property
    def pairs(self) -> list[tuple[Round, Round]]:
        """Return the (served, baseline) pairs of rounds; empty without a baseline."""
        return list(zip(self.rounds[SERVED], self.rounds.get(BASELINE, ()), strict=False))

    def ratios(self, metric: str) -> list[float]:
        """Return served / baseline of a metric for each round in which both are known."""
        answered = [pair for pair in self.pairs if all(each.answered for each in pair)]
        found = [(getattr(served, metric), getattr(alone, metric)) for served, alone in answered]
        return [ours / theirs for ours, theirs in found if ours and theirs]

    @property
    def unfit(self) -> str:
        """Return the reason why the arms cannot be compared, or "".

        Failed requests take little time, so too many of them make an arm look fast. Numbers of chunks are not
        comparable, because a chunk of a speculating server contains several tokens.
        """
        for name, rounds in self.rounds.items() if BASELINE in self.rounds else ():
            samples = [sample for each in rounds for sample in each.samples]
            failed = sum(not sample.ok for sample in samples)
            if failed > MAX_FAILED * len(samples):
                return f"{failed} of {len(samples)} requests failed ({name})"
            if self.load.judged_by == THROUGHPUT and not all(each.is_counted for each in samples if each.ok):
                return f"the server does not report token counts ({name})"
        return ""

    def speedups(self) -> list[float]:
        """Return the speed-up of each round, by the metric that compares the arms at this load."""
        if self.unfit:
            return []
        ratios = self.ratios(self.load.judged_by)
        return ratios if LARGER_IS_BETTER[self.load.judged_by] else [1 / ratio for ratio in ratios]

    @property
    def speedup(self) -> RatioInterval | None:
        """Return the speed-up from speculation with its interval, or None if it is unknown."""
        ratios = self.speedups()
        return ratio_of_rounds(ratios) if ratios else None


@dataclass(frozen=True)
class SweepResult:
    """Endpoints by arm and measurements by load; `ended_by` is the error that ended the sweep early, or ""."""

    arms: Mapping[str, Endpoint]
    points: Sequence[Point]
    ended_by: str = ""


def measure(
    plan: LoadPlan, samples: TextIO | None = None, on_progress: OnProgress = lambda what, done, total: None
) -> SweepResult:
    """Run a load test; raises DeployError if a server does not respond."""
    return runner()(_measure(plan, samples, on_progress))


async def _measure(plan: LoadPlan, samples: TextIO | None, on_progress: OnProgress) -> SweepResult:
    driver = find_extension("trtspec.bench.load.drivers", "DRIVER", plan.driver, "driver")
    ask_round = driver(plan.tokenizer, plan.timeout_s)  # before any request, because the driver may not be installed
    async with load_client(plan.timeout_s) as client:
        arms = await find_arms(client, plan.served, plan.baseline)
        if plan.is_judged and BASELINE not in arms:
            raise GateNotMet("--fail-below requires a baseline", hint="give one with --baseline")
        return await _Sweep(plan, client, arms, ask_round, samples, on_progress).run()


@dataclass(frozen=True)
class _Sweep:
    """A running load test: its plan, the endpoints by arm, and the driver's function that measures a round."""

    plan: LoadPlan
    client: LoadClient
    arms: Mapping[str, Endpoint]
    ask_round: AskRound
    samples: TextIO | None
    on_progress: OnProgress

    async def run(self) -> SweepResult:
        """Measure the loads in order; raises DeployError if the first load fails completely.

        If a later load fails, the sweep ends with the results so far.
        """
        points: list[Point] = []
        for load in self.plan.loads:
            try:
                points.append(await self._measure(load))
            except DeployError as error:
                if not points:
                    raise
                return SweepResult(self.arms, points, f"{load}: {error}")
            speedup = points[-1].speedup
            if self.plan.effort.until_crossover and speedup and speedup.shows < 0:
                break
        return SweepResult(self.arms, points)

    async def _measure(self, load: ArrivalProcess) -> Point:
        requests = self.plan.effort.requests or load.requests_a_round
        point, began = Point(load, requests, {name: [] for name in self.arms}), clock()
        for name in self.arms:  # warm-up, not measured
            await self._ask(point, name, -1)
        before = {name: await read_counters(self.client, endpoint) for name, endpoint in self.arms.items()}
        while not self._is_enough(point, clock() - began):
            await self._round(point)
        for name, endpoint in self.arms.items():
            after = await read_counters(self.client, endpoint)
            point.counters[name] = after.since(before[name]) if after else Counters()
        return point

    async def _round(self, point: Point) -> None:
        number, names = len(point.rounds[SERVED]), list(self.arms)
        for name in names if number % 2 else names[::-1]:
            point.work_ms.append(work_ms())
            done = await self._ask(point, name, number)
            point.rounds[name].append(done)
            if self.samples:
                write_samples(self.samples, point.load, number, name, done)
        self.on_progress(str(point.load), number + 1, self.plan.effort.most_rounds)

    async def _ask(self, point: Point, arm: str, number: int) -> Round:
        """Return one round of an arm; raises DeployError if every request failed."""
        endpoint = self.arms[arm]
        done = await self.ask_round(self.client, endpoint, point.load, self.plan.workload, number, point.requests)
        if not done.answered:
            raise DeployError(f"all {len(done.samples)} requests failed: {done.samples[0].error}", where=endpoint.url)
        return done

    def _is_enough(self, point: Point, spent_s: float) -> bool:
        effort, done = self.plan.effort, len(point.rounds[SERVED])
        if done >= effort.most_rounds or (done and effort.duration_s is not None and spent_s >= effort.duration_s):
            return True
        if done < effort.least_rounds or effort.interval is None:
            return False
        speedup = point.speedup
        return speedup is not None and speedup.half_width <= effort.interval
