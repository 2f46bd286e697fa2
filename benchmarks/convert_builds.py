# SPDX-License-Identifier: Apache-2.0
"""Measure the complete `trtspec build`, from an unread checkpoint to an artifact on disk, against the machine's limit.

For each encoding and number of ranks, with the source cold and in the page cache: the seconds of the command, of its
steps, and of opening the artifact again. The limit, measured in the same run, is the slowest of the required
operations: reading, hashing every byte read and written, quantizing if weights are quantized, writing, and for a cold
source reading while the output is written (the disk's combined rate).
Calibration is measured separately: shares of the limit and comparisons do not include the seconds of its step.
The same run measures `cat` and `cp` of the source, and a loop over ranks (rank_loop.py), which does not hash. The loop
is left out if one of its ranks needs more than half of the memory.

    python benchmarks/convert_builds.py [--gigabytes 1 4 8] [--runs 3] [--encodings none] [--ranks 1 4] [--out FILE]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from convert_limits import (
    CORES,
    measure_both,
    measure_cached_read,
    measure_cat,
    measure_cp,
    measure_hashing,
    measure_quantizing,
    measure_read,
    measure_write,
)
from convert_source import Shape, forget, make_source, remember, shape_of
from machine import cpu_name

ENCODINGS, RANKS = ("none", "fp8", "fp8_rowwise"), (1, 4, 8)
TINY = Shape(256, 512, 128, 1024, 8)

BOUND_S = 1800
KIND = ("source_bytes", "weights", "ranks")
MEMORY_BYTES = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
MEDIANS = ("seconds", "calibration_s", "cpu_s", "rate", "of_limit", "peak_bytes", "disk_read_bytes", "open_s")

RECIPE = """\
schema: trtspec.recipe/1
name: built
target:
  model: ./source
  quantization: {{weights: {weights}, calibration: {{samples: 1, max_len: 8}}}}
  parallel: {{tensor: {ranks}}}
speculation: {{method: none}}
engine: {{backend: embedded, max_seq_len: 512}}
"""


@dataclass(frozen=True)
class Limits:
    """Current bytes per second of this machine.

    `disk_s` is seconds of reading by the bytes written concurrently. `cat_s` and `cp_s` are seconds of reading the
    cached source and of copying it to the disk.
    """

    cold_read: float
    cached_read: float
    write: float
    hashing: float
    quantizing: float
    disk_s: dict[int, float]
    cat_s: float
    cp_s: float

    @classmethod
    def measure(cls, root: Path, nbytes: int) -> Limits:
        """Measure all rates, on the source's files and a new file of the same size."""
        source, few = root / "source", min(nbytes, 1 << 30)
        cold, disk_s = measure_read(source), {}
        write = measure_write(root / "probe", nbytes)
        for written in (nbytes, nbytes // 2):  # full size, and half for quantized weights
            (root / "probe").unlink()
            disk_s[written] = measure_both(source, root / "probe", written)
        (root / "probe").unlink()
        remember(source)
        return cls(
            cold_read=cold,
            cached_read=measure_cached_read(source),
            write=write,
            hashing=measure_hashing(CORES, few),
            quantizing=measure_quantizing(few),
            disk_s=disk_s,
            cat_s=measure_cat(source),
            cp_s=measure_cp(source, root / "copy"),
        )

    def seconds(self, read: int, written: Sequence[int], weights: str, *, cold: bool) -> dict[str, float]:
        """Return the minimum seconds of each operation for the bytes read and the bytes written to each file."""
        return {
            "read": read / (self.cold_read if cold else self.cached_read),
            "hash": (read + sum(written)) / self.hashing,
            "quantize": 0.0 if weights == "none" else read / self.quantizing,
            "write": sum(written) / self.write,
            "read and write": self._both(sum(written)) if cold else 0.0,
        }

    def _both(self, written: int) -> float:
        """Return the seconds of the closest measured size."""
        return self.disk_s[min(self.disk_s, key=lambda each: abs(each - written))]


def measure_sizes(
    root: Path,
    sizes: Sequence[float],
    runs: int,
    encodings: Sequence[str],
    ranks: Sequence[int],
    shape: Shape | None = None,
) -> dict[str, Any]:
    """Return every sample of all source sizes in gigabytes, one size on the disk at a time."""
    found = []
    for gigabytes in sizes:
        place = root / f"{gigabytes:g}"
        found.append(measure_builds(place, gigabytes, runs, encodings, ranks, shape or shape_of(gigabytes)))
        shutil.rmtree(place)
    every = {name: [sample for each in found for sample in each[name]] for name in ("builds", "rank_loops")}
    return {"source_bytes": [each["source_bytes"] for each in found], "compile_s": found[0]["compile_s"], **every}


def measure_builds(
    root: Path, gigabytes: float, runs: int, encodings: Sequence[str], ranks: Sequence[int], shape: Shape
) -> dict[str, Any]:
    """Return every sample: builds, the rank loop, and their limits."""
    root.mkdir(parents=True, exist_ok=True)
    nbytes = make_source(root / "source", gigabytes, shape)
    samples, loops, compile_s = [], [], _compile(root)
    for _ in range(runs):
        limits = Limits.measure(root, nbytes)
        for weights, number in ((weights, number) for weights in encodings for number in ranks):
            for cold in (True, False):
                samples.append(_sample(root, nbytes, weights, number, limits, cold=cold))
                _say(samples[-1])
            if nbytes / number < MEMORY_BYTES / 2:
                loops.append(_loop(root, nbytes, weights, number))
                print(f"  rank loop {loops[-1]['rate'] / 1e9:.2f} GB/s", file=sys.stderr)
    return {"source_bytes": nbytes, "compile_s": compile_s, "builds": samples, "rank_loops": loops}


def _sample(root: Path, nbytes: int, weights: str, ranks: int, limits: Limits, *, cold: bool) -> dict[str, Any]:
    source = root / "source"
    forget_builds(root)
    (root / "built.yaml").write_text(RECIPE.format(weights=weights, ranks=ranks))
    os.sync()
    (forget if cold else remember)(source)
    command = [sys.executable, "-m", "trtspec", "build", str(root / "built.yaml"), "--json", "--out", str(root / "out")]
    took, said = _timed(command, root)
    opening, _ = _timed([sys.executable, "-c", OPEN, str(root / "out")], root)
    written = [path.stat().st_size for path in (root / "out").rglob("*.safetensors")]
    least = limits.seconds(nbytes, written, weights, cold=cold)
    steps = {step["name"]: step["seconds"] for step in json.loads(said)["steps"]}
    calibration_s = steps.get("calibrate-target", 0.0)
    rest_s = took["seconds"] - calibration_s
    return {
        **{"source_bytes": nbytes, "weights": weights, "ranks": ranks, "cold": cold},
        **{**took, "rate": nbytes / rest_s},
        **{"steps": steps, "calibration_s": calibration_s},
        "open_s": opening["seconds"],
        **{"least": least, "of_limit": max(least.values()) / rest_s, "rates": asdict(limits)},
    }


def forget_builds(root: Path) -> None:
    """Remove build outputs except the compiled library, which is cached after a machine's first build."""
    shutil.rmtree(root / "out", ignore_errors=True)
    for path in (root / "cache").glob("*"):
        if path.is_file():
            path.unlink()
        elif path.name != "plugins":
            shutil.rmtree(path)


def _compile(root: Path) -> float:
    """Return the seconds of compiling the library, which is then cached."""
    took, _ = _timed([sys.executable, "-c", COMPILE], root)
    return took["seconds"]


def _loop(root: Path, nbytes: int, weights: str, ranks: int) -> dict[str, Any]:
    """Return the rank loop's result with its source in the page cache."""
    remember(root / "source")
    shutil.rmtree(root / "loop", ignore_errors=True)
    script = str(Path(__file__).with_name("rank_loop.py"))
    command = [sys.executable, script, str(root / "source"), str(root / "loop"), weights, str(ranks)]
    took, _ = _timed(command, root)
    shutil.rmtree(root / "loop")
    kind = {"source_bytes": nbytes, "weights": weights, "ranks": ranks}
    return {**kind, **took, "rate": nbytes / took["seconds"]}


COMPILE = """\
from trtspec.kernels.host_kernels import compile_host_library
assert compile_host_library()
"""
OPEN = """\
import pathlib, sys
from trtspec.bench.artifact import read_artifact
read_artifact(pathlib.Path(sys.argv[1]))
"""
# A process inherits the peak memory of its parent, so a small one starts it.
STARTER = """\
import json, resource, subprocess, sys, time
started = time.perf_counter()
done = subprocess.run(sys.argv[2:])
used = resource.getrusage(resource.RUSAGE_CHILDREN)
document = {"seconds": time.perf_counter() - started, "peak_bytes": used.ru_maxrss * 1024}
document |= {"cpu_s": used.ru_utime + used.ru_stime, "disk_read_bytes": used.ru_inblock * 512}
open(sys.argv[1], "w").write(json.dumps(document))
sys.exit(done.returncode)
"""


def _timed(command: list[str], root: Path) -> tuple[dict[str, Any], str]:
    """Run a command; return its measurements from STARTER and its output."""
    environment = {**os.environ, "TRTSPEC_CACHE": str(root / "cache"), "TRTSPEC_STATE": str(root / "state")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package has compiled bytecode
    starter = [sys.executable, "-c", STARTER, str(root / "timed.json")]
    done = subprocess.run([*starter, *command], env=environment, stdout=subprocess.PIPE, timeout=BOUND_S, check=True)
    return json.loads((root / "timed.json").read_text()), done.stdout.decode()


def _say(sample: dict[str, Any]) -> None:
    where = f"{sample['weights']} for {sample['ranks']}, {'cold' if sample['cold'] else 'cached'}"
    slowest = max(sample["least"], key=sample["least"].get)
    print(
        f"{where}: {sample['seconds']:.2f} s ({sample['calibration_s']:.2f} s of calibration),"
        f" {sample['rate'] / 1e9:.2f} GB/s, {sample['of_limit']:.0%} of the limit ({slowest}),"
        f" {sample['cpu_s']:.1f} s of processors, {sample['disk_read_bytes'] / 1e9:.2f} GB from the disk,"
        f" peak {sample['peak_bytes'] / 1e6:.0f} MB, opened in {sample['open_s']:.1f} s",
        file=sys.stderr,
    )


def summarize_builds(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the medians of each size, encoding, number of ranks and state of the page cache."""
    kinds: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for each in found["builds"]:
        kinds.setdefault((*_kind(each), each["cold"]), []).append(each)
    rows = []
    for (*kind, cold), samples in kinds.items():
        peers = [each["seconds"] for each in found["rank_loops"] if _kind(each) == tuple(kind)]
        medians = {name: statistics.median(each[name] for each in samples) for name in MEDIANS}
        rest_s = medians["seconds"] - medians["calibration_s"]
        times = statistics.median(peers) / rest_s if peers else None
        commands = {name: statistics.median(each["rates"][name] for each in samples) for name in ("cat_s", "cp_s")}
        row = dict(zip(KIND, kind, strict=True))
        rows.append({**row, "cold": cold, **medians, "times_rank_loop": times, **commands})
    return rows


def _kind(sample: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(sample[name] for name in KIND)


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", nargs="+", type=float, default=(4.0,))
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--encodings", nargs="+", choices=ENCODINGS, default=ENCODINGS)
    parser.add_argument("--ranks", nargs="+", type=int, default=RANKS)
    parser.add_argument("--tiny", action="store_true", help="use layers of size 256 to test the benchmark itself")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="builds-", dir=os.environ.get("BENCH_DIR")) as folder:
        shape = TINY if asked.tiny else None
        found = measure_sizes(Path(folder), asked.gigabytes, asked.runs, asked.encodings, asked.ranks, shape)
    machine = {"cpu": cpu_name(), "cores": CORES, "python": platform.python_version()}
    document = {"machine": machine, "summary": summarize_builds(found), **found}
    print(json.dumps(document["summary"], indent=2))
    if asked.out:
        asked.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
