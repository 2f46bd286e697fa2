# SPDX-License-Identifier: Apache-2.0
"""Run the parts that need a GPU with the machine's Python, and write JSON for each part.

    benchmarks/gpu/run.sh [--parts tests|engine|recipes|build|...] [--wheels DIR] [--out DIR] [--arch sm_90a]

Parts, in order: build (the kernels' library), kernels (their tests), plugin (TensorRT's, without TensorRT), sanitizer,
verify (benchmarks/verify.py), engine-tests; then engine, the benchmark of the torch engine; then recipes, the commands
on the quickstart recipes. "tests" are the first six; each group takes at most 9 minutes, or --seconds. A part that
fails or is terminated does not stop the others. The exit code is 0 if all chosen parts passed.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu import runner, summary, wheels
from benchmarks.gpu.parts import WORK, Part, environment, parts
from benchmarks.gpu.probe import Machine, probe


def choose(known: Sequence[Part], wanted: Sequence[str]) -> list[Part]:
    """Return the parts with these names or groups, in the defined order; all if none is given."""
    names = {name for part in known for name in (part.name, part.group)}
    if unknown := set(wanted) - names:
        sys.exit(f"unknown part {', '.join(sorted(unknown))}; known: {', '.join(sorted(names))}")
    return [part for part in known if not wanted or {part.name, part.group} & set(wanted)]


def run_all(
    chosen: Sequence[Part], machine: Machine, given: dict[str, str], place: runner.Place, scale: float = 1.0
) -> list[Any]:
    """Run the parts in order and return their documents; a group's time, times `scale`, starts with its first part."""
    documents, began = [], {}
    for part in chosen:
        began.setdefault(part.group, time.monotonic())
        if reason := machine.reason(part.needs):
            documents.append(runner.write(part, place, status="skipped", reason=reason, seconds=0.0))
        else:
            limit = began[part.group] + part.until * scale - time.monotonic()
            print(f"{part.name}: at most {limit:.0f} s", flush=True)
            documents.append(runner.run(part, limit, given, place))
        print(summary.line(documents[-1]), flush=True)
    return documents


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="benchmarks/gpu/run.sh", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parts", nargs="*", default=[], help="names of parts, or the groups tests and engine")
    parser.add_argument("--wheels", type=Path, help="folder of wheels for packages that this Python lacks")
    parser.add_argument("--out", type=Path, default=WORK, help="output folder for the documents")
    parser.add_argument(
        "--arch", default="", help="compile kernels for this GPU (e.g. sm_90a), even if it is not present"
    )
    parser.add_argument("--seconds", type=float, help="time limit of each group; parts get less in proportion")
    parser.add_argument("--workers", type=int, default=1, help="processes of the tests (needs pytest-xdist)")
    options = parser.parse_args(arguments)
    # on SIGTERM, a run writes its summary and ends all its processes
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    chosen = choose(parts(sys.executable, options.arch, options.workers), options.parts)
    options.out.mkdir(parents=True, exist_ok=True)
    site = WORK / "site"
    trouble = wheels.install(options.wheels, site) if options.wheels else ""
    given = environment(site)
    machine = probe(given, site)
    print(summary.header(machine, trouble), flush=True)
    scale = options.seconds / max((part.until for part in chosen), default=1) if options.seconds else 1.0
    documents = run_all(chosen, machine, given, runner.Place(options.out, WORK), scale)
    print(summary.write(options.out, machine, trouble, documents))
    return 0 if all(document["status"] == "passed" for document in documents) else 1


if __name__ == "__main__":
    sys.exit(main())
