# SPDX-License-Identifier: Apache-2.0
"""Measure what a team store costs and saves per GiB: sending, fetching, and running a step instead.

The step writes random bytes of a given seed in files of 256 MiB. Its time is the time to write and hash, so it is the
least that any step of this size takes. Each round has a new seed and new stores. The file cache is warm.

    python -m benchmarks.team_store [--gigabytes 1] [--rounds 3] [--remote file:PATH | oci://HOST/NAME]
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from trtspec.core.hashing import digest_and_sha256
from trtspec.store.step import Inputs, Step, StepProgress
from trtspec.store.store import Store
from trtspec.store.team.client import TeamStore

FILE_BYTES = 256 << 20
PIECE_BYTES = 1 << 20


@dataclass(frozen=True)
class Weights(Step):
    """Writes random bytes by seed."""

    VERSION: ClassVar[int] = 1
    seed: int
    nbytes: int

    def run(self, out: Path, inputs: Inputs, progress: StepProgress) -> None:
        generator = np.random.default_rng(self.seed)
        for begin in range(0, self.nbytes, FILE_BYTES):
            with (out / f"weights-{begin // FILE_BYTES}").open("wb") as file:
                for _ in range(0, min(FILE_BYTES, self.nbytes - begin), PIECE_BYTES):
                    file.write(generator.bytes(PIECE_BYTES))


def seconds(work: Callable[[], object]) -> float:
    """Return the wall time of a function."""
    started = time.perf_counter()
    work()
    return time.perf_counter() - started


def measure_round(folder: Path, address: str, seed: int, nbytes: int) -> dict[str, float]:
    """Return the seconds of one step: run, sent, fetched, and its limits: hashed by one thread, and looked up."""
    step = Weights(seed, nbytes)
    builder = Store(folder / f"builder{seed}")
    found = {"built": seconds(lambda: builder.obtain(step))}
    entry = builder.obtain(step).entry
    found["hashed"] = seconds(lambda: [digest_and_sha256(entry.files_dir / each.path) for each in entry.files])
    sender = Store(builder.root, remote=TeamStore(address))
    found["looked_up"] = seconds(lambda: sender.remote and sender.remote.find([step.key]))
    found["sent"] = seconds(lambda: sender.obtain(step))
    reader = Store(folder / f"reader{seed}", remote=TeamStore(address, "read"))
    found["fetched"] = seconds(lambda: reader.obtain(step))
    if reader.verify() or reader.get(step.key).entry is None:
        raise RuntimeError("the fetched entry is wrong")
    return found


def main() -> None:
    """Print the medians as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabytes", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--remote", default="")
    options = parser.parse_args()
    nbytes = int(options.gigabytes * 1024) << 20
    with tempfile.TemporaryDirectory(prefix="trtspec-team-") as name:
        folder = Path(name)
        address = options.remote or f"file:{folder}/team"
        seed = time.time_ns() % 1_000_000
        rounds = [measure_round(folder, address, seed + number, nbytes) for number in range(options.rounds)]
    medians: dict[str, Any] = {key: round(statistics.median(each[key] for each in rounds), 3) for key in rounds[0]}
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"gigabytes": options.gigabytes, "rounds": rounds, "medians": medians, "peak_mib": round(peak)}))


if __name__ == "__main__":
    main()
