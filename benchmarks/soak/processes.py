# SPDX-License-Identifier: Apache-2.0
"""Measure memory and processor time of a deployment's processes, by kind of process."""

from __future__ import annotations

import os
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import mean

from trtspec.core.processes import session_processes, start_time
from trtspec.deployment.health import process_model

TICKS = os.sysconf("SC_CLK_TCK")
WINDOWS = 10  # windows per run: for ten minutes, one minute each
THIRD, LAST = 2, WINDOWS - 1


def processes_of(leader: int) -> dict[int, str]:
    """Return the processes of the session led by `leader`, with the kind of each."""
    return {pid: name_of(pid) for pid in session_processes(leader, start_time(leader))}


def name_of(pid: int) -> str:
    """Return the model, module or program that a process runs."""
    with suppress(OSError):
        argv = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
        module = next((word for flag, word in pairwise(argv) if flag == "-m"), "")
        return process_model(pid) or module or Path(argv[0]).name
    return "gone"


def pss_bytes(pid: int) -> int:
    """Return the proportional memory of a process without file pages; 0 if it is gone.

    File pages are excluded, because their share depends on which other processes run.
    """
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:")))
    return 0


def cpu_s(pid: int) -> float:
    """Return the processor time of a process; 0 if it is gone."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS
    return 0.0


def busy_s() -> float:
    """Return the processor time of the whole machine, over all cores."""
    user, nice, system, _, _, irq, softirq, *_ = map(int, Path("/proc/stat").read_text().split("\n")[0].split()[1:])
    return (user + nice + system + irq + softirq) / TICKS


class Processor:
    """Processor time per second by process, since creation."""

    def __init__(self, leader: int) -> None:
        self._leader, self._begun, self._before = leader, time.monotonic(), self._taken(leader)

    def used(self) -> dict[str, float]:
        """Return the number of busy cores by kind of process; "others" are processes outside the soak test."""
        seconds = time.monotonic() - self._begun
        spent = {name: (taken - self._before[name]) / seconds for name, taken in self._taken(self._leader).items()}
        ours = sum(cores for name, cores in spent.items() if name != "machine")
        return {name: round(cores, 3) for name, cores in spent.items() if name != "machine"} | {
            "others": round(max(0.0, spent["machine"] - ours), 3)
        }

    @staticmethod
    def _taken(leader: int) -> Counter[str]:
        taken = Counter({"machine": busy_s(), "clients": cpu_s(os.getpid())})
        for pid, name in processes_of(leader).items():
            taken[name] += cpu_s(pid)
        return taken


@dataclass
class Memory:
    """The memory of a session's processes during a run of `seconds`."""

    leader: int
    seconds: float
    samples: list[tuple[float, dict[str, int]]] = field(default_factory=list)
    begun: float = field(default_factory=time.monotonic)

    def sample(self) -> None:
        """Take one sample."""
        sizes: Counter[str] = Counter()
        for pid, name in processes_of(self.leader).items():
            sizes[name] += pss_bytes(pid)
        self.samples.append((time.monotonic() - self.begun, dict(sizes)))

    def summary(self) -> dict[str, object]:
        """Return mean MB in the third and the last tenth of the run, by process and in total, and the growth."""
        third, last = self._window(THIRD), self._window(LAST)
        if not third or not last:
            return {"samples": len(self.samples), "growth_percent": None}
        total = [sum(each.values()) for each in (third, last)]
        return {
            "samples": len(self.samples),
            "window_s": self.seconds / WINDOWS,
            "third_mb": _mb(third),
            "last_mb": _mb(last),
            "total_mb": [round(each / 1e6, 1) for each in total],
            "growth_percent": round(100 * (total[1] / total[0] - 1), 3),
        }

    def _window(self, number: int) -> dict[str, float]:
        length = self.seconds / WINDOWS
        found = [sizes for at, sizes in self.samples if number * length <= at < (number + 1) * length]
        return {name: mean(sizes.get(name, 0) for sizes in found) for name in sorted(found[0])} if found else {}


def _mb(sizes: dict[str, float]) -> dict[str, float]:
    return {name: round(size / 1e6, 1) for name, size in sizes.items()}
