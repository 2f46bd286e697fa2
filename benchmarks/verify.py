# SPDX-License-Identifier: Apache-2.0
"""Measure the compiled verification, from logits to accepted tokens in one call.

    trtspec plugins build [--arch sm_90a]
    python benchmarks/verify.py [--device cpu] [--batch 1 8] [--draft-len 1 5 8] [--seconds 120] [--out FILE.json]

Claim: it returns exactly the numpy oracle's result, and on one CPU core it is at least 5 times as fast as torch's
operations at batch 8 and draft_len 5.

Sides: ours; torch (softmax, gather, multinomial; sort for top_k and top_p); the same with torch.compile; FlashInfer's
softmax and chain_speculative_sampling, if installed. "hot" verifies the same logits again, "cold" uses different logits
each time, so that all are read from memory. The floor is the time to read the required rows at the copy rate measured
in the same run. On a GPU, batch 1 is also replayed as a CUDA graph, torch.compile is used only if both sizes are above
1 (it recompiles for a size of 1, which takes seconds), and calls longer than 10 ms are measured cold only. With

--seconds, each kind and dtype gets its share of the time, and the sizes of the documentation's table run first; skipped

cases are counted.
"""

from __future__ import annotations

import argparse
import itertools
import json
import signal
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import environment
from verify_sides import Batch, Case, Side, ours, ours_in_full, sides_for

from trtspec.kernels import bit_exact
from trtspec.kernels.bindings import KernelLibrary, load_library

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
BATCHES = {"cpu": (1, 8), "cuda": (1, 2, 4, 8, 16, 32, 64, 128, 256)}
DRAFT_LENS = {"cpu": (1, 5, 8), "cuda": (1, 2, 3, 4, 5, 6, 7, 8)}
COLD_BYTES = {"cpu": 256 << 20, "cuda": 1 << 30}  # several times the size of the last-level cache
LEAST_CALLS, LEAST_SECONDS = 3, {"cpu": 0.3, "cuda": 0.02}
CALLS_AT_ONCE = {"cpu": 1, "cuda": 20}  # calls per timing, because a GPU kernel is shorter than the timing overhead
LONG_US = {"cpu": float("inf"), "cuda": 10_000}  # duration above which two samples are enough
FIRST = {"batch": (8, 1, 64), "draft_len": (5, 1, 8)}  # measured first if time is limited


class Clock:
    """Times calls on a device."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._calls = CALLS_AT_ONCE[device.type]

    def samples(self, call: Callable[[], object]) -> list[float]:
        """Return the microseconds of repeated calls."""
        call()
        found = [self._once(call, 1)]
        if self.is_long(found[0]):
            return [*found, self._once(call, 1)]
        found = []
        while len(found) < LEAST_CALLS or sum(found) * self._calls < 1e6 * LEAST_SECONDS[self.device.type]:
            found.append(self._once(call, self._calls))
        return found

    def is_long(self, us: float) -> bool:
        """Return whether a call is so long that it is measured only twice."""
        return us > LONG_US[self.device.type]

    def _once(self, call: Callable[[], object], calls: int) -> float:
        self._wait()
        started = time.perf_counter()
        for _ in range(calls):
            call()
        self._wait()
        return 1e6 * (time.perf_counter() - started) / calls

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


def copy_rate(clock: Clock) -> float:
    """Return the bytes/s that a copy reads and writes, the best of many."""
    source = torch.ones(COLD_BYTES[clock.device.type] // 4, device=clock.device)
    sink = torch.empty_like(source)
    return 2 * source.numel() * 4 / (min(clock.samples(lambda: sink.copy_(source))) * 1e-6)


def measure(case: Case, clock: Clock, library: KernelLibrary, threads: int) -> dict[str, Any]:
    """Return each side's times for a case, hot and cold."""
    batch = Batch.random(case, clock.device)
    copies = max(2, -(-COLD_BYTES[clock.device.type] // batch.logit_bytes))
    others = itertools.cycle([batch, *(batch.elsewhere() for _ in range(copies - 1))])
    found = ours_in_full(library, batch, threads)
    times: dict[str, dict[str, Any]] = {}
    for name, side in sides_for(case, library, clock.device, threads).items():
        try:
            times[name] = temperatures(clock, lambda side=side: side(batch), lambda side=side: side(next(others)))
        except Exception as error:  # a third-party side may not support a case; the others continue
            if name == "ours":
                raise
            times[name] = {"error": f"{type(error).__name__}: {error}"[:500]}
    if clock.device.type == "cuda" and case.batch == 1:
        times["ours, CUDA graph"] = {"hot": summary(clock.samples(graph_of(ours(library, threads), batch).replay))}
    return asdict(case) | {
        "dtype": str(case.dtype).removeprefix("torch."),
        "threads": threads,
        "accepted_share": round(found.accepted.sum().item() / (case.batch * case.draft_len), 3),
        "needed_bytes": batch.needed_bytes(found.accepted),
        "sides": times,
    }


def temperatures(clock: Clock, hot: Callable[[], object], cold: Callable[[], object]) -> dict[str, Any]:
    """Return a side's hot and cold times; for long calls only cold, because both are equal."""
    taken = clock.samples(cold)
    found = {"cold": summary(taken)}
    return found if clock.is_long(statistics.median(taken)) else {"hot": summary(clock.samples(hot)), **found}


def graph_of(side: Side, batch: Batch) -> Any:
    """Return a call as a CUDA graph; it must have been called outside before."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        side(batch)
    return graph


def summary(samples: Sequence[float]) -> dict[str, Any]:
    """Return microseconds: median, minimum, maximum, and at most 20 samples in order."""
    taken = [round(value, 1) for value in samples[:: max(1, len(samples) // 20)][:20]]
    median = round(statistics.median(samples), 1)
    return {"us": median, "min": round(min(samples), 1), "max": round(max(samples), 1), "samples": taken}


def check(case: Case, clock: Clock, library: KernelLibrary, threads: int) -> list[str]:
    """Compare the library with the oracle on a batch that is not measured; return the differences."""
    batch = Batch.random(case, clock.device)
    arrays = {
        name: None if getattr(batch, name) is None else getattr(batch, name).cpu().numpy()
        for name in ("tokens", "uniforms", "temperature", "top_k", "top_p")
    }
    logits = {name: getattr(batch, name).float().cpu().numpy() for name in ("target", "draft")}
    wanted = bit_exact.verify_chain(bit_exact.ChainBatch(**logits, **arrays))
    found = ours_in_full(library, batch, threads)
    return [
        f"{case}: {name} differs from the oracle"
        for name in ("accepted", "output", "next", "status")
        if not np.array_equal(getattr(found, name).cpu().numpy(), getattr(wanted, name))
    ]


def table(results: Sequence[dict[str, Any]], rate: float) -> list[str]:
    """Return one line per case: cold microseconds, and the ratio to torch."""
    lines = []
    for result in results:
        size = f"{result['kind']:<10}{result['dtype']:<10}b{result['batch']:<4}k{result['draft_len']:<3}"
        floor = 1e6 * result["needed_bytes"] / rate
        cold = {name: side["cold"]["us"] for name, side in result["sides"].items() if "cold" in side}
        others = "".join(f"  {name} {us:.0f} ({us / cold['ours']:.1f}x)" for name, us in cold.items() if name != "ours")
        threads = result["threads"]
        lines.append(f"{size}t{threads:<3}floor {floor:9.1f}  ours {cold['ours']:9.1f} us{others}")
    return lines


def library_at(path: Path | None) -> KernelLibrary:
    """Return the library to measure: the given one, or the last one built."""
    if path is None:
        from trtspec.kernels.build import find_libraries

        path = next(iter(find_libraries()), None)
    if path is None:
        sys.exit("build it first: trtspec plugins build")
    return load_library(path)


def sizes_of(batches: Iterable[int], draft_lens: Iterable[int]) -> list[tuple[int, int]]:
    """Return all pairs of sizes, with the documentation's table first."""

    first, every = list(itertools.product(*FIRST.values())), list(itertools.product(batches, draft_lens))
    return [size for size in first if size in every] + [size for size in every if size not in first]


@dataclass
class Run:
    """The configuration and results of a run; each group of cases has a share of `seconds`."""

    clock: Clock
    library: KernelLibrary
    threads: int
    rate: float
    began: float = field(default_factory=time.monotonic)
    results: list[dict[str, Any]] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    left_out: int = 0

    def group(self, cases: Sequence[Case], until: float) -> None:
        """Check correctness for one kind and dtype, and measure its cases until `until` seconds after the start."""
        self.wrong += check(
            Case(cases[0].kind, 2, 5, cases[0].vocab, cases[0].dtype), self.clock, self.library, self.threads
        )
        torch.compiler.reset()  # otherwise torch.compile reaches its recompilation limit
        for number, case in enumerate(cases):
            if time.monotonic() - self.began > until:
                self.left_out += len(cases) - number
                return
            self.results.append(measure(case, self.clock, self.library, self.threads))
            print(*table(self.results[-1:], self.rate), sep="\n", file=sys.stderr, flush=True)

    def document(self) -> dict[str, Any]:
        """Return the results."""
        first = [one for one in self.results if one["batch"] in FIRST["batch"] and one["draft_len"] == 5]
        device = self.clock.device
        gpu = {"gpu": torch.cuda.get_device_name()} if device.type == "cuda" else {}
        return {
            "claim": " ".join((__doc__ or "").split("\n\n")[0].split()),
            "copy_bytes_per_s": round(self.rate),
            "environment": environment() | gpu,
            "wrong": self.wrong,
            "left_out": self.left_out,
            "table": table(first, self.rate),
            "cases": self.results,
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=BATCHES, default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--library", type=Path)
    parser.add_argument("--kinds", nargs="+", default=["sampled", "greedy", "truncated"])
    parser.add_argument("--dtypes", nargs="+", choices=DTYPES, default=list(DTYPES))
    parser.add_argument("--batch", nargs="+", type=int)
    parser.add_argument("--draft-len", nargs="+", type=int)
    parser.add_argument("--vocab", type=int, default=128256)
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of every side")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="time limit, after which cases are skipped")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    clock, library = Clock(torch.device(arguments.device)), library_at(arguments.library)
    torch.set_num_threads(arguments.threads)
    run = Run(clock, library, arguments.threads, copy_rate(clock))
    sizes = sizes_of(arguments.batch or BATCHES[arguments.device], arguments.draft_len or DRAFT_LENS[arguments.device])
    groups = list(itertools.product(arguments.kinds, arguments.dtypes))
    try:
        for number, (kind, dtype) in enumerate(groups, 1):
            cases = [Case(kind, *size, arguments.vocab, DTYPES[dtype]) for size in sizes]
            run.group(cases, arguments.seconds * number / len(groups))
    finally:
        if arguments.out:
            arguments.out.write_text(json.dumps(run.document(), indent=1) + "\n")
    print("\n".join(table(run.results, run.rate)))
    if run.wrong:
        sys.exit("\n".join(run.wrong))


if __name__ == "__main__":
    main()
