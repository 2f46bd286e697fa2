# SPDX-License-Identifier: Apache-2.0
"""Measure a list of loads, alternating the arms until the comparison is precise enough.

A round sends the same requests to each arm back to back. The order alternates, so that warm-up of the machine or of
caches does not favour one arm.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TextIO

from trtspec.bench.load.arrival import LARGER_IS_BETTER, THROUGHPUT, ArrivalProcess
from trtspec.bench.load.client import Endpoint, LoadClient, clock
from trtspec.bench.load.client_noise import work_ms
from trtspec.bench.load.counters import Counters, read_counters
from trtspec.bench.load.intervals import RatioInterval, ratio_of_rounds
from trtspec.bench.load.rounds import MAX_FAILED, AskRound, Round, run_round
from trtspec.bench.load.sample_log import write_samples
from trtspec.bench.load.workload import LoadWorkload
from trtspec.core.errors import DeployError

SERVED, BASELINE = "served", "baseline"  # the server with speculation, and the target alone
OnProgress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class StopRule:
    """When to stop: after a minimum and maximum of rounds, or once the interval is narrow enough.

    `interval` is the target half-width of the speed-up's 95 % interval relative to the speed-up, or None to always run
    `most_rounds`. `duration_s` limits each load, except that the first round is always completed. `requests` is the
    size of a round, None for the load's default. `until_crossover` ends the sweep once speculation is shown to be
    slower.
    """

    least_rounds: int = 3
    most_rounds: int = 12
    interval: float | None = 0.05
    duration_s: float | None = None
    requests: int | None = None
    until_crossover: bool = False


@dataclass
class Point:
    """One load: the rounds of each arm, the increase of its counters, and the noise measurements between rounds."""

    load: ArrivalProcess
    requests: int
    rounds: dict[str, list[Round]]
    counters: dict[str, Counters] = field(default_factory=dict)
    work_ms: list[float] = field(default_factory=list)

    def ratios(self, value: Callable[[Round], float | None]) -> list[float]:
        """Return served / baseline values of the rounds in which both are known."""
        pairs = zip(self.rounds[SERVED], self.rounds.get(BASELINE, ()), strict=False)
        found = [(value(served), value(alone)) for served, alone in pairs if served.answered and alone.answered]
        return [ours / theirs for ours, theirs in found if ours and theirs]

    @property
    def unfit(self) -> str:
        """Return why the arms cannot be compared, or "".

        Failed requests take little time, and chunks are not comparable because a speculating server sends several
        tokens in one.
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
        """Return each round's speed-up by the metric of its load."""
        if self.unfit:
            return []
        ratios = self.ratios(lambda each: getattr(each, self.load.judged_by))
        return ratios if LARGER_IS_BETTER[self.load.judged_by] else [1 / ratio for ratio in ratios]

    @property
    def speedup(self) -> RatioInterval | None:
        """Return the speed-up from speculation, or None without a baseline."""
        ratios = self.speedups()
        return ratio_of_rounds(ratios) if ratios else None


@dataclass(frozen=True)
class SweepResult:
    """The endpoints by arm and the results of each load; `ended_by` is the error that ended the sweep early."""

    arms: Mapping[str, Endpoint]
    points: Sequence[Point]
    ended_by: str = ""


@dataclass
class Sweep:
    """Configuration of a sweep: endpoints by arm, workload, loads and stop rule."""

    arms: Mapping[str, Endpoint]
    workload: LoadWorkload
    loads: Sequence[ArrivalProcess]
    effort: StopRule
    samples: TextIO | None = None
    on_progress: OnProgress = lambda what, done, total: None
    ask_round: AskRound = run_round

    async def run(self, client: LoadClient) -> SweepResult:
        """Measure the loads in order; raise DeployError if the first load fails completely.

        If a later load fails, the sweep ends with the completed loads.
        """
        points: list[Point] = []
        for load in self.loads:
            try:
                points.append(await self._measure(client, load))
            except DeployError as error:
                if not points:
                    raise
                return SweepResult(self.arms, points, f"{load}: {error}")
            speedup = points[-1].speedup
            if self.effort.until_crossover and speedup and speedup.shows < 0:
                break
        return SweepResult(self.arms, points)

    async def _measure(self, client: LoadClient, load: ArrivalProcess) -> Point:
        point = Point(load, self.effort.requests or load.requests_a_round, {name: [] for name in self.arms})
        began = clock()
        for endpoint in self.arms.values():  # warm-up, not measured
            warm = await self.ask_round(client, endpoint, load, self.workload, -1, point.requests)
            _raise_for_silence(warm, endpoint)
        before = {name: await read_counters(client, endpoint) for name, endpoint in self.arms.items()}
        while not self._is_enough(point, clock() - began):
            await self._round(client, point)
        for name, endpoint in self.arms.items():
            point.counters[name] = (await read_counters(client, endpoint)).since(before[name])
        return point

    async def _round(self, client: LoadClient, point: Point) -> None:
        number = len(point.rounds[SERVED])
        names = list(self.arms)
        for name in names if number % 2 else names[::-1]:
            point.work_ms.append(work_ms())
            done = await self.ask_round(client, self.arms[name], point.load, self.workload, number, point.requests)
            _raise_for_silence(done, self.arms[name])
            point.rounds[name].append(done)
            if self.samples:
                write_samples(self.samples, point.load, number, name, done)
        self.on_progress(str(point.load), number + 1, self.effort.most_rounds)

    def _is_enough(self, point: Point, spent_s: float) -> bool:
        """Return whether the load is finished."""
        effort, done = self.effort, len(point.rounds[SERVED])
        if done >= effort.most_rounds or (done and effort.duration_s is not None and spent_s >= effort.duration_s):
            return True
        if done < effort.least_rounds or effort.interval is None:
            return False
        speedup = point.speedup
        return speedup is not None and speedup.half_width <= effort.interval


def _raise_for_silence(done: Round, endpoint: Endpoint) -> None:
    if not done.answered:
        raise DeployError(f"all {len(done.samples)} requests failed: {done.samples[0].error}",
                          where=endpoint.url)  # fmt: skip
