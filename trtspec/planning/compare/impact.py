# SPDX-License-Identifier: Apache-2.0
"""Effects of the differences between two inputs: steps to rebuild and why, bytes read, and memory.

Each part is None if one of the inputs lacks the data.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from trtspec.planning.compare.documents import StepPart
from trtspec.planning.compare.inputs import ComparisonInput

UNKNOWN_WHY = "not recorded"


def describe_effects(a: ComparisonInput, b: ComparisonInput) -> dict[str, Any]:
    """Return the effects of changing from `a` to `b`: `steps`, `build`, `memory`, `files`, `speedup`."""
    return {
        "steps": _steps(a, b),
        "build": _build(a, b),
        "memory": _memory(a, b),
        "files": _files(a, b),
        "speedup": _speedup(a, b),
    }


def _steps(a: ComparisonInput, b: ComparisonInput) -> list[dict[str, str]] | None:
    """Return each step that differs, and why."""
    if not (a.steps and b.steps):
        return None
    return [
        {"name": name, **_change(a.steps.get(name), b.steps.get(name))}
        for name in {**a.steps, **b.steps}
        if not (name in a.steps and name in b.steps and a.steps[name].key == b.steps[name].key)
    ]


def _change(a: StepPart | None, b: StepPart | None) -> dict[str, str]:
    if a is None or b is None:
        return {"what": "only in b" if a is None else "only in a", "why": ""}
    names = [name for name in {**a.key_parts, **b.key_parts} if a.key_parts.get(name) != b.key_parts.get(name)]
    return {"what": "differs", "why": ", ".join(names) if a.key_parts and b.key_parts else UNKNOWN_WHY}


def _build(a: ComparisonInput, b: ComparisonInput) -> dict[str, Any] | None:
    """Return the steps of `b` that remain to be run after `a` was built, and the bytes they read and write."""
    if not (a.steps and b.steps):
        return None
    there = {step.key for step in a.steps.values()}
    new = [step for step in b.steps.values() if step.key not in there]
    steps = {"a": list(a.steps.values()), "b": list(b.steps.values()), "left": new}
    reads = {f"{name}_read_bytes": _total(step.read_bytes for step in each) for name, each in steps.items()}
    writes = {f"{name}_write_bytes": _total(step.write_bytes for step in each) for name, each in steps.items()}
    return {"steps": [step.name for step in new], **reads, **writes}


def _total(sizes: Iterable[int | None]) -> int | None:
    """Return the sum, None if a part is unknown."""
    found = list(sizes)
    known = [size for size in found if size is not None]
    return sum(known) if len(known) == len(found) else None


def _memory(a: ComparisonInput, b: ComparisonInput) -> list[dict[str, Any]] | None:
    ours, theirs = a.sections.get("memory"), b.sections.get("memory")
    if ours is None or theirs is None:
        return None
    return [{"gpu": gpu, "a_bytes": ours.get(gpu), "b_bytes": theirs.get(gpu)} for gpu in {**ours, **theirs}]


def _files(a: ComparisonInput, b: ComparisonInput) -> dict[str, int] | None:
    ours, theirs = a.sections.get("files"), b.sections.get("files")
    if ours is None or theirs is None:
        return None
    both = ours.keys() & theirs.keys()
    return {
        "same": sum(ours[path] == theirs[path] for path in both),
        "different": sum(ours[path] != theirs[path] for path in both),
        "only_a": len(ours) - len(both),
        "only_b": len(theirs) - len(both),
        "a_bytes": sum(file["size"] for file in ours.values()),
        "b_bytes": sum(file["size"] for file in theirs.values()),
    }


def _speedup(a: ComparisonInput, b: ComparisonInput) -> dict[str, Any] | None:
    """Return both intervals and whether they overlap; then the difference may be chance."""
    ours, theirs = _interval(a), _interval(b)
    if ours is None or theirs is None:
        return None
    return {"a": ours, "b": theirs, "overlap": ours[0] <= theirs[1] and theirs[0] <= ours[1]}


def _interval(side: ComparisonInput) -> list[float] | None:
    found = [section.get("speedup_interval") for section in side.sections.values()]
    intervals = [each for each in found if isinstance(each, list) and len(each) == 2]
    is_numbers = bool(intervals) and all(type(bound) in (int, float) for bound in intervals[0])
    return intervals[0] if is_numbers else None
