# SPDX-License-Identifier: Apache-2.0
"""The document of a part: the results of each run, and their totals."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

SHOWN = 10  # items shown of a list without numbers
LONGEST = "slowest"  # the key of a maximum, which is not added up
Document = dict[str, Any]


def load_runs(path: Path) -> list[Document]:
    """Return the runs in a part's document, empty without a document."""
    return list(json.loads(path.read_text())["runs"]) if path.exists() else []


def document_of(part: str, runs: Sequence[Document], counts: str, wanted: int) -> Document:
    """Return a part's document; it passes if each run passes and, for a part with `counts`, all work is done."""
    if not counts:
        return {"part": part, "holds": all(run["holds"] for run in runs), "runs": [*runs]}
    done, sound = done_in(runs, counts), all(all(run["checks"].values()) for run in runs)
    total = spread(added([run["found"] for run in runs]))
    return {"part": part, "holds": sound and done >= wanted, "wanted": wanted, "total": total, "runs": [*runs]}


def done_in(runs: Sequence[Document], counts: str) -> int:
    """Return the amount of work done in a part's runs."""
    return sum(run["found"].get(counts, 0) for run in runs)


def added(found: Sequence[Document]) -> Document:
    """Return the combined findings of several runs: counts add up, lists join, recursively by name."""
    names = dict.fromkeys(name for each in found for name in each)
    return {name: _added(name, [each[name] for each in found if name in each]) for name in names}


def _added(name: str, values: list[Any]) -> Any:
    if isinstance(values[0], dict):
        return added(values)
    if isinstance(values[0], list):
        return [item for value in values for item in value]
    return max(values) if name.startswith(LONGEST) else sum(values)


def spread(found: Any) -> Any:
    """Return findings with lists of seconds replaced by median and maximum, and other lists truncated."""
    if isinstance(found, dict):
        return {name: spread(value) for name, value in found.items()}
    if not isinstance(found, list):
        return found
    if not found or not all(isinstance(each, int | float) for each in found):
        return found[:SHOWN]
    return {"median": round(median(found), 2), "longest": max(found)}
