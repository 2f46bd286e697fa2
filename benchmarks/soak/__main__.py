# SPDX-License-Identifier: Apache-2.0
"""Run parts of the soak, write what each found to FOLDER/soak-PART.json, and exit with 1 where something does not hold.

    python -m benchmarks.soak [--parts streams draft] [--streams 64] [--seconds 600] [--faults 200] [--out FOLDER]

A line a minute says how long it will take; what an interrupted run has is written too.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.machine import environment
from benchmarks.soak import draft, rollouts, streams
from benchmarks.soak.parts import Options, Parts, Report
from benchmarks.soak.processes import busy_s
from benchmarks.soak.progress import say
from trtspec.system import sigterm_as_interrupt

PARTS: Parts = {"streams": streams.run, "draft": draft.run, "rollouts": rollouts.run}
INTERRUPTED = 130


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
    parser.add_argument(
        "--faults", type=int, help="how often the draft's process gets one, and how many rollouts (200)"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--short", action="store_true", help="a minute's version")
    parser.add_argument("--out", type=Path, help="a folder for soak-PART.json")
    parser.add_argument("--place", type=Path, help="a folder for what is served and its logs, which stay there")
    parser.add_argument("--note", default="", help="what is to be said of the machine")
    return parser.parse_args()


def options(asked: argparse.Namespace, place: Path) -> Options:
    """Return what a part is run with; a short run does less of all that is not asked for."""
    sizes = (8, 10.0, 3) if asked.short else (64, 600.0, 200)
    given = (asked.streams, asked.seconds, asked.faults)
    streams, seconds, faults = (size if one is None else one for size, one in zip(sizes, given, strict=True))
    return Options(place, asked.seed, int(streams), float(seconds), int(faults), asked.short)


def run(part: str, asked: argparse.Namespace) -> bool:
    """Run one part, write down what it found, and return whether all of it holds."""
    report, machine = Report(), Machine(asked.note)
    with ExitStack() as stack:
        stack.callback(lambda: write(part, report, machine, asked.out))
        place = Path(asked.place or stack.enter_context(TemporaryDirectory(ignore_cleanup_errors=True))) / part
        place.mkdir(parents=True)
        try:
            PARTS[part](options(asked, place.absolute()), report)
        except KeyboardInterrupt:
            say(f"{part}: interrupted")
            stack.close()
            sys.exit(INTERRUPTED)
    return report.holds


def write(part: str, report: Report, machine: Machine, out: Path | None) -> None:
    """Print what a part found, and keep it where a folder is named."""
    document = {"part": part, **report.document(), "machine": machine.document()}
    text = json.dumps(document, indent=1)
    print(text, flush=True)
    if out:
        out.mkdir(parents=True, exist_ok=True)
        (out / f"soak-{part}.json").write_text(text + "\n")
    for name in [name for name, holds in report.checks.items() if not holds]:
        say(f"{part}: {name} does NOT hold")
    say(f"{part}: {'all holds' if report.holds else 'not shown'}")


class Machine:
    """The machine, from when this is made to when it is asked for the document."""

    def __init__(self, note: str) -> None:
        self._note, self._begun, self._load, self._busy = note, time.time(), os.getloadavg(), busy_s()

    def document(self) -> dict[str, Any]:
        seconds = time.time() - self._begun
        return {
            **environment(),
            "load_before": self._load,
            "load_after": os.getloadavg(),
            "busy_cores": round((busy_s() - self._busy) / seconds, 2),
            "seconds": round(seconds),
            "begun": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._begun)),
            "note": self._note,
        }


if __name__ == "__main__":
    main()
