# SPDX-License-Identifier: Apache-2.0
"""Run one part with a time limit, end all its processes, and record the outcome."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu.parts import ROOT, Part

SCHEMA = "trtspec.gpu/1"
GRACE_S = 5.0  # between SIGTERM, on which a part writes its results, and SIGKILL
LOG_CHARACTERS = 8000
SHOWN_FAILURES = 20


@dataclass(frozen=True)
class Place:
    """Directories of a run: `out` for documents, `work` for logs and reports."""

    out: Path
    work: Path

    def report(self, part: Part) -> Path:
        """Return the path of a part's report."""
        return self.work / "reports" / f"{part.name}.json"

    def log(self, part: Part) -> Path:
        """Return the path of a part's log."""
        return self.work / "logs" / f"{part.name}.log"


def run(part: Part, limit: float, environment: Mapping[str, str], place: Place) -> dict[str, Any]:
    """Run a part for at most `limit` seconds; write and return its document."""
    report, log = place.report(part), place.log(part)
    for path in (report, log):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
    words = {"{seconds}": f"{max(1.0, limit - 2 * GRACE_S):.0f}", "{report}": str(report)}
    command = [words.get(word, word) for word in part.command]
    started = time.monotonic()
    code = _execute(command, limit, environment, log)
    seconds = time.monotonic() - started
    findings = _findings(part, report)
    tail = log.read_text(errors="replace")[-LOG_CHARACTERS:]
    reason = _reason(code, limit, findings, tail)
    return write(
        part,
        place,
        status="failed" if reason else "passed",
        reason=reason,
        seconds=round(seconds, 1),
        limit_s=round(limit, 1),
        exit_code=code,
        command=command,
        log_tail=tail,
        **findings,
    )


def write(part: Part, place: Place, **found: Any) -> dict[str, Any]:
    """Write a part's document and return it."""
    document = {"schema": SCHEMA, "part": part.name, **found}
    (place.out / f"{part.name}.json").write_text(json.dumps(document, indent=1) + "\n")
    return document


def _execute(command: list[str], limit: float, environment: Mapping[str, str], log: Path) -> int | None:
    """Return the command's exit code, or None if it timed out; its process group is ended."""
    with log.open("wb") as sink:
        try:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            sink.write(f"{command[0]} cannot be run: {error}\n".encode())
            return 127
        try:
            return process.wait(limit)
        except subprocess.TimeoutExpired:
            _signal(process, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_S)
            return None
        finally:
            _signal(process, signal.SIGKILL)
            process.wait()  # unbounded: the process was killed


def _signal(process: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal to a command's process group, if it still exists."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, number)


def _findings(part: Part, report: Path) -> dict[str, Any]:
    """Return a part's results: under "tests" the counts and failures, or under "measured" its document."""
    text = report.read_text() if report.exists() else ""
    if not part.tests:
        try:
            return {"measured": json.loads(text)} if text else {}
        except ValueError:
            return {"measured": {"error": "its document is incomplete"}}
    # one line per test, so that tests completed before a timeout count
    lines = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
    counts = Counter(line["outcome"] for line in lines)
    failures = [line for line in lines if line["outcome"] != "passed"]
    slowest = sorted(lines, key=lambda line: -line["seconds"])[:10]
    return {
        "tests": {
            **{outcome: counts[outcome] for outcome in ("passed", "failed", "skipped")},
            "failures": failures[:SHOWN_FAILURES],
            "slowest": [{name: line[name] for name in ("test", "seconds")} for line in slowest],
        }
    }


def _reason(code: int | None, limit: float, findings: Mapping[str, Any], tail: str) -> str:
    """Return why a part failed, or ""."""
    tests = findings.get("tests")
    if code is None:
        return f"did not end within {limit:.0f} s" + (f"; {tests['passed']} tests had passed" if tests else "")
    if code:
        last = f": {tail.strip().splitlines()[-1]}" if tail.strip() else ""
        failed = f": {tests['failed']} of {tests['failed'] + tests['passed']} tests failed" if tests else last
        return f"exit code {code}{failed}"
    return "ran no test" if tests is not None and not tests["passed"] else ""
