# SPDX-License-Identifier: Apache-2.0
"""Many concurrent streams for a long time: mixed requests through both APIs of a deployed quickstart.

Checks that all texts equal the texts of sequential requests, that memory is stable, and that sixteen streams are at
least four times as fast as one, with drafts and with the target alone.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from benchmarks.soak.asking import Entry, OpenaiEntry, TritonEntry
from benchmarks.soak.asks import mixed
from benchmarks.soak.load import Known, Record, Turn, alone, by, load, summary
from benchmarks.soak.parts import Options, Report
from benchmarks.soak.processes import Memory, Processor
from benchmarks.soak.progress import Progress, say
from trtspec.core.paths import recipes_dir
from trtspec.core.processes import wait_until

NAME, ENGINE = "quickstart", "tensorrt_llm"
WITHIN_S = 120.0  # per request, including its time in the queue
SAMPLE_S = 1.0
HANGS_UP = 0.06  # share of requests that are cancelled
ONE, MANY, FASTER = 1, 16, 4.0
ROUNDS = 2
GROWTH_PERCENT = 2.0
SETTLES_S = 10.0  # until a server without clients is idle


def run(options: Options, report: Report) -> None:
    """Run the part and fill the report."""
    asks = mixed(8 if options.short else 40, options.seed)
    with deployed(options.place) as deployment:
        urls = deployment["endpoints"]
        entries: list[Entry] = [TritonEntry(urls["http"]), OpenaiEntry(urls["openai"].removesuffix("/v1"), NAME)]
        say(f"streams: {len(asks) * len(entries)} requests are sent one at a time")
        known = alone(entries, asks, WITHIN_S)
        soak(options, report, known, deployment)
        undrafted = alone(entries[:1], [replace(ask, draft_len=0) for ask in asks], WITHIN_S)
        rates(options, report, {"with_drafts": known, "without": undrafted}, deployment)
    report.complete = True


def soak(options: Options, report: Report, known: Sequence[Known], deployment: dict[str, Any]) -> None:
    """Keep the streams open for the given time, and record their outcome and the processes' usage."""
    progress, memory = Progress("streams"), Memory(deployment["pid"], options.seconds)
    processor = Processor(deployment["pid"])
    try:
        with load(options.streams, chooser(known, HANGS_UP), seed=options.seed, within_s=WITHIN_S) as records:
            while (passed := time.monotonic() - memory.begun) < options.seconds:
                time.sleep(SAMPLE_S)
                memory.sample()
                progress.tell(passed / options.seconds, f"{len(records)} requests")
            used, passed = processor.used(), time.monotonic() - memory.begun
            tokens = sum(record.heard.tokens for record in records)
    finally:
        report.found["soak"] = told(records, memory) | {"streams": options.streams, "seconds": round(passed, 1)}
    report.found["soak"] |= {"tokens_per_s": round(tokens / passed, 1), "busy_cores": used}
    check(report, memory)
    report.checks["nothing_left_running"] = wait_until(lambda: is_idle(deployment["endpoints"]["metrics"]), SETTLES_S)


def told(records: Sequence[Record], memory: Memory) -> dict[str, Any]:
    kinds = by(records, lambda record: f"{record.turn.known.entry.name} {record.turn.known.ask.name.split('-')[0]}")
    return summary(records) | {"kinds": kinds, "memory": memory.summary()}


def check(report: Report, memory: Memory) -> None:
    """Record the checks of a soak."""
    found, growth = report.found["soak"], memory.summary()["growth_percent"]
    report.checks |= {
        "no_error": found["requests"] > 0 and found["failures"] == 0,
        "every_text_as_alone": found["different_texts"] == 0,
        "memory_flat": isinstance(growth, float) and abs(growth) <= GROWTH_PERCENT,
    }


def rates(options: Options, report: Report, arms: dict[str, Sequence[Known]], deployment: dict[str, Any]) -> None:
    """Measure tokens per second with one stream and many, alternating with and without drafts, and the busy cores."""
    seconds = 4.0 if options.short else 20.0
    measured = {arm: Throughput() for arm in arms}
    for _ in range(1 if options.short else ROUNDS):
        for arm, known in arms.items():
            for streams in (ONE, MANY):
                with load(streams, chooser(known, 0.0), seed=options.seed, within_s=WITHIN_S):
                    time.sleep(1.0)
                    measured[arm].measure(streams, deployment, seconds)
    report.settings |= {"seconds_of_throughput": seconds}
    report.found["throughput"] = {arm: each.document() for arm, each in measured.items()}
    report.checks |= {
        f"{MANY}_streams_{FASTER:g}_times_one_{arm}": each.speedup >= FASTER for arm, each in measured.items()
    }


@dataclass
class Throughput:
    """Tokens per second by number of streams, and the busy cores by kind of process in the last measurement."""

    tokens_per_s: dict[int, list[float]] = field(default_factory=dict)
    cores: dict[int, dict[str, float]] = field(default_factory=dict)

    def measure(self, streams: int, deployment: dict[str, Any], seconds: float) -> None:
        """Take one measurement with that many open streams."""
        processor = Processor(deployment["pid"])
        self.tokens_per_s.setdefault(streams, []).append(rate(deployment["endpoints"]["metrics"], seconds))
        self.cores[streams] = processor.used()

    @property
    def speedup(self) -> float:
        return max(self.tokens_per_s[MANY]) / max(self.tokens_per_s[ONE])

    def document(self) -> dict[str, Any]:
        """Return the JSON document."""
        return {
            "tokens_per_s": {str(streams): samples for streams, samples in self.tokens_per_s.items()},
            "speedup": round(self.speedup, 2),
            "busy_cores": {str(streams): cores for streams, cores in self.cores.items()},
            "tokens_per_engine_cpu_s": {
                str(streams): round(samples[-1] / max(0.001, self.cores[streams][ENGINE]), 1)
                for streams, samples in self.tokens_per_s.items()
            },
            "bound_by": bound(self.cores[MANY]),
        }


def rate(metrics: str, seconds: float) -> float:
    """Return the engine's tokens per second, including incomplete texts."""
    before, begun = engine_tokens(metrics), time.monotonic()
    time.sleep(seconds)
    return round((engine_tokens(metrics) - before) / (time.monotonic() - begun), 1)


def engine_tokens(metrics: str) -> float:
    """Return the number of tokens generated by the engine; its metrics are updated twice a second."""
    wanted = ("trtspec_generated_tokens_total{", f'model="{ENGINE}"')
    return sum(value for name, value in samples_of(metrics) if all(part in name for part in wanted))


def samples_of(metrics: str) -> Iterator[tuple[str, float]]:
    """Yield the samples of a server's metrics, by name and labels."""
    with urlopen(metrics, timeout=10) as answer:
        lines = answer.read().decode().splitlines()
    for line in lines:
        name, _, value = line.rpartition(" ")
        if not line.startswith("#"):
            yield name, float(value)


def bound(used: dict[str, float]) -> str:
    """Describe which process used most processor time."""
    cores = os.cpu_count() or 1
    [most, taken], total = max(used.items(), key=lambda item: item[1]), sum(used.values())
    state = "all of them" if total > 0.9 * cores else f"{total:.2f}"
    return f"{most}, which takes {taken:.2f} of {cores} cores; {state} are busy"


def chooser(known: Sequence[Known], hangs_up: float) -> Callable[[random.Random], Turn]:
    """Return a function that chooses a client's next action at random."""

    def choose(chance: random.Random) -> Turn:
        leave_s = chance.uniform(0.05, 2.0) if chance.random() < hangs_up else None
        return Turn(chance.choice(known), chance.random() < 0.5, leave_s)

    return choose


def is_idle(metrics: str) -> bool:
    """Return whether no model has a pending request."""
    return not any(value for name, value in samples_of(metrics) if name.startswith("trtspec_requests_running{"))


@contextmanager
def deployed(place: Path) -> Iterator[dict[str, Any]]:
    """Build and deploy the quickstart with the command in a separate state directory; it is stopped at the end."""
    os.environ |= {"TRTSPEC_STATE": str(place / "state"), "TRTSPEC_CACHE": str(place / "cache")}
    trtspec("build", f"{recipes_dir()}/quickstart.yaml", "--out", f"{place}/quickstart")
    skipped = ("--skip-gate", "min_speedup")  # measured by benchmarks/quickstart.py
    document = trtspec("deploy", f"{place}/quickstart", "--detach", "--name", NAME, *skipped)
    try:
        yield document
    finally:
        trtspec("stop", NAME)


def trtspec(*arguments: str) -> dict[str, Any]:
    """Run a command and return its JSON document."""
    command = [sys.executable, "-m", "trtspec", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)}\n{done.stdout}{done.stderr}")
    return dict(json.loads(done.stdout))
