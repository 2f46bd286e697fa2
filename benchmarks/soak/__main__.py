# SPDX-License-Identifier: Apache-2.0
"""Run parts of the soak test, write results to FOLDER/soak-PART.json, and exit with 1 if a check fails.

    python -m benchmarks.soak [--parts streams draft] [--streams 64] [--seconds 600] [--faults 200] [--rollouts 1000]
                             [--out FOLDER] [--resume]

The estimated remaining time is printed once a minute; an interrupted run writes its results too. With --resume, a run
is added to those in the file and continues the remaining faults and rollouts.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.machine import commit, environment
from benchmarks.soak import draft, rollouts, streams
from benchmarks.soak.parts import Options, Part, Parts, Report
from benchmarks.soak.processes import busy_s
from benchmarks.soak.progress import say
from benchmarks.soak.runs import Document, document_of, done_in, load_runs
from trtspec.core.processes import sigterm_as_interrupt

PARTS: Parts = {
    "streams": Part(streams.run),
    "draft": Part(draft.run, "faults"),
    "rollouts": Part(rollouts.run, "rollouts"),
}
WANTED = {"faults": 200, "rollouts": 1000}
INTERRUPTED = 130
NUMBERS = re.compile(r"\[[\s\d.,e-]+\]")  # a list of numbers is printed in one line


def main() -> None:
    asked = arguments()
    held = True
    with sigterm_as_interrupt():
        for part in asked.parts:
            held &= run(part, asked)
    sys.exit(not held)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--streams", type=int, help="number of concurrent requests (64)")
    parser.add_argument("--seconds", type=float, help="duration of the load (600)")
    parser.add_argument("--faults", type=int, help="number of faults of the draft's process (200)")
    parser.add_argument("--rollouts", type=int, help="number of rollouts (1000)")
    parser.add_argument("--resume", action="store_true", help="add to the results in --out")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--short", action="store_true", help="run for about a minute")
    parser.add_argument("--out", type=Path, help="folder for soak-PART.json")
    parser.add_argument("--place", type=Path, help="folder for artifacts and logs, which are kept")
    parser.add_argument("--note", default="", help="note about the machine")
    if (found := parser.parse_args()).resume and not found.out:
        parser.error("--resume requires --out, the folder with earlier runs")
    return found


def options(asked: argparse.Namespace, before: Sequence[Document], counts: str) -> Options:
    """Return a part's options; a short run reduces all defaults, and a resumed run gets another seed for its faults."""
    streams, seconds = (8, 10.0) if asked.short else (64, 600.0)
    wanted = 0
    if counts:
        wanted = getattr(asked, counts) or (3 if asked.short else WANTED[counts])
    seed, left = asked.seed + len(before), wanted - done_in(before, counts)
    return Options(Path(), seed, asked.streams or streams, asked.seconds or seconds, left, asked.short)


def run(name: str, asked: argparse.Namespace) -> bool:
    """Run one part, write its results, and return whether all checks pass, including earlier runs."""
    part, path = PARTS[name], asked.out and asked.out / f"soak-{name}.json"
    before = load_runs(path) if asked.resume else []
    wanted = options(asked, before, part.counts)
    if asked.resume and part.counts and wanted.count <= 0:
        say(f"{name}: all {done_in(before, part.counts)} are already done")
        return all(all(each["checks"].values()) for each in before)
    report, machine = Report(), Machine(asked.note)

    def document() -> Document:
        runs = [*before, report.document() | {"machine": machine.document()}]
        return document_of(name, runs, part.counts, wanted.count + done_in(before, part.counts))

    with TemporaryDirectory(ignore_cleanup_errors=True) as temporary:
        place = Path(asked.place or temporary).absolute() / name
        place.mkdir(parents=True)
        try:
            part.run(replace(wanted, place=place), report)
        except KeyboardInterrupt:
            say(f"{name}: interrupted")
            sys.exit(INTERRUPTED)
        finally:
            written = document()
            write(written, report, path)
    return bool(written["holds"])


def write(document: Document, report: Report, path: Path | None) -> None:
    """Print a part's results, and save them if a folder is given."""
    text, part = NUMBERS.sub(lambda found: " ".join(found[0].split()), json.dumps(document, indent=1)), document["part"]
    print(text, flush=True)
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    for name in [name for name, holds in report.checks.items() if not holds]:
        say(f"{part}: {name} FAILED")
    say(f"{part}: {'passed' if document['holds'] else 'failed'}")


class Machine:
    """The machine's description and load between creation and the final document."""

    def __init__(self, note: str) -> None:
        self._environment, self._note, self._commit = (
            environment(),
            note,
            commit(),
        )  # collected here, because an interrupted run must end quickly
        self._begun, self._load, self._busy = time.time(), os.getloadavg(), busy_s()

    def document(self) -> dict[str, Any]:
        seconds = time.time() - self._begun
        return {
            **self._environment,
            "load_before": self._load,
            "load_after": os.getloadavg(),
            "busy_cores": round((busy_s() - self._busy) / seconds, 2),
            "seconds": round(seconds),
            "begun": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._begun)),
            "commit": self._commit,
            "note": self._note,
        }


if __name__ == "__main__":
    main()
