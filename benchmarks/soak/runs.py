# SPDX-License-Identifier: Apache-2.0
"""The document of a part: what each of its runs found, and what all of them come to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

SHOWN = 10  # of a list that is no numbers
LONGEST = "slowest"  # what is called so is no sum
Document = dict[str, Any]


def load_runs(path: Path) -> list[Document]:
    """Return the runs that a part's document has, none where there is no document."""
    return list(json.loads(path.read_text())["runs"]) if path.exists() else []


def document_of(part: str, runs: Sequence[Document], counts: str, wanted: int) -> Document:
    """Return the document of a part: it holds where each run does and, of one that `counts`, all is done."""
    if not counts:
        return {"part": part, "holds": all(run["holds"] for run in runs), "runs": [*runs]}
    done, sound = done_in(runs, counts), all(all(run["checks"].values()) for run in runs)
    total = spread(added([run["found"] for run in runs]))
    return {"part": part, "holds": sound and done >= wanted, "wanted": wanted, "total": total, "runs": [*runs]}


def done_in(runs: Sequence[Document], counts: str) -> int:
    """Return how much of what a part counts was done in its runs."""
    return sum(run["found"].get(counts, 0) for run in runs)


def added(found: Sequence[Document]) -> Document:
    """Return findings of several runs as one: counts add up, lists join, and so does what they hold by name."""
    names = dict.fromkeys(name for each in found for name in each)
    return {name: _added(name, [each[name] for each in found if name in each]) for name in names}


def _added(name: str, values: list[Any]) -> Any:
    if isinstance(values[0], dict):
        return added(values)
    if isinstance(values[0], list):
        return [item for value in values for item in value]
    return max(values) if name.startswith(LONGEST) else sum(values)


def spread(found: Any) -> Any:
    """Return findings with the median and the longest in place of numbers of seconds, and the first of other lists."""
    if isinstance(found, dict):
        return {name: spread(value) for name, value in found.items()}
    if not isinstance(found, list):
        return found
    if not found or not all(isinstance(each, int | float) for each in found):
        return found[:SHOWN]
    return {"median": round(median(found), 2), "longest": max(found)}
