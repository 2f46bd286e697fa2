# SPDX-License-Identifier: Apache-2.0
"""Run parts of the soak, write what each found to FOLDER/soak-PART.json, and exit with 1 where something does not hold.

    python -m benchmarks.soak [--parts streams draft] [--streams 64] [--seconds 600] [--faults 200] [--rollouts 1000]
                             [--out FOLDER] [--resume]

A line a minute says how long it will take; what an interrupted run has is written too. With --resume a run is added to
those that the file has, and does what is left of the faults and rollouts that are wanted.
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
NUMBERS = re.compile(r"\[[\s\d.,e-]+\]")  # a list of them takes one line


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
    parser.add_argument("--streams", type=int, help="requests that are open at once (64)")
    parser.add_argument("--seconds", type=float, help="for how long they are (600)")
    parser.add_argument("--faults", type=int, help="how often the draft's process gets one (200)")
    parser.add_argument("--rollouts", type=int, help="how many there are (1000)")
    parser.add_argument("--resume", action="store_true", help="add to what the files in --out have")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--short", action="store_true", help="a minute's version")
    parser.add_argument("--out", type=Path, help="a folder for soak-PART.json")
    parser.add_argument("--place", type=Path, help="a folder for what is served and its logs, which stay there")
    parser.add_argument("--note", default="", help="what is to be said of the machine")
    if (found := parser.parse_args()).resume and not found.out:
        parser.error("--resume needs --out, the folder that has the runs before")
    return found


def options(asked: argparse.Namespace, before: Sequence[Document], counts: str) -> Options:
    """Return what a part is run with; a short run does less of all that is not asked for, another one other faults."""
    streams, seconds = (8, 10.0) if asked.short else (64, 600.0)
    wanted = 0
    if counts:
        wanted = getattr(asked, counts) or (3 if asked.short else WANTED[counts])
    seed, left = asked.seed + len(before), wanted - done_in(before, counts)
    return Options(Path(), seed, asked.streams or streams, asked.seconds or seconds, left, asked.short)


def run(name: str, asked: argparse.Namespace) -> bool:
    """Run one part, write down what it found, and return whether all of it holds, earlier runs included."""
    part, path = PARTS[name], asked.out and asked.out / f"soak-{name}.json"
    before = load_runs(path) if asked.resume else []
    wanted = options(asked, before, part.counts)
    if asked.resume and part.counts and wanted.count <= 0:
        say(f"{name}: all {done_in(before, part.counts)} are done")
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
    """Print what a part found, and keep it where a folder is named."""
    text, part = NUMBERS.sub(lambda found: " ".join(found[0].split()), json.dumps(document, indent=1)), document["part"]
    print(text, flush=True)
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    for name in [name for name, holds in report.checks.items() if not holds]:
        say(f"{part}: {name} does NOT hold")
    say(f"{part}: {'all holds' if document['holds'] else 'not shown'}")


class Machine:
    """The machine, from when this is made to when it is asked for the document."""

    def __init__(self, note: str) -> None:
        self._environment, self._note, self._commit = environment(), note, commit()  # at the end all has to be quick
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
