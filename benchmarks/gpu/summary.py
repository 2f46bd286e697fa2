# SPDX-License-Identifier: Apache-2.0
"""Summarize a run as text and JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.gpu.probe import Machine
from benchmarks.gpu.runner import SCHEMA

SHOWN = ("part", "status", "reason", "seconds")


def header(machine: Machine, trouble: str) -> str:
    """Return the machine's properties and missing requirements, one line each."""
    words = [
        f"GPU: {'; '.join(machine.gpus) or 'none'}",
        f"Python {machine.python}, torch {machine.torch or 'none'}, {machine.cores} cores; {machine.nvcc or 'no nvcc'}",
        *([f"wheels: {trouble}"] if trouble else []),
        *(f"lacks {name}: {reason}" for name, reason in machine.lacks.items()),
    ]
    return "\n".join(words)


def line(document: Mapping[str, Any]) -> str:
    """Return one part's outcome in a line."""
    tests = document.get("tests")
    counts = f", {tests['passed']} tests passed" if tests else ""
    reason = f": {document['reason']}" if document["reason"] else ""
    return f"{document['part']:<13} {document['status']} in {document['seconds']:.0f} s{counts}{reason}"


def write(out: Path, machine: Machine, trouble: str, documents: Sequence[Mapping[str, Any]]) -> str:
    """Write summary.json and summary.txt; return the text."""
    rows = [{name: document[name] for name in SHOWN} for document in documents]
    passed = all(row["status"] == "passed" for row in rows)
    whole = {"schema": SCHEMA, "passed": passed, "machine": machine.as_dict(), "wheels": trouble, "parts": rows}
    (out / "summary.json").write_text(json.dumps(whole, indent=1) + "\n")
    text = "\n".join([header(machine, trouble), "", *map(_told, documents)])
    (out / "summary.txt").write_text(text + "\n")
    return text


def _told(document: Mapping[str, Any]) -> str:
    """Return a part's line, its failed tests, and its table of results."""
    failures = document.get("tests", {}).get("failures", [])
    table = document.get("measured", {}).get("table", [])
    details = [f"{failure['test']}: {_last_line(failure['message'])}" for failure in failures]
    return "\n".join([line(document), *(f"    {detail}" for detail in [*details, *table])])


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2]
