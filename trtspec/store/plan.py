# SPDX-License-Identifier: Apache-2.0
"""Build plans: the order of the steps, their status in the store, and the disk space that they need.

Step sizes come from headers; this module does not depend on how steps write their output.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from trtspec.store.step import Step
from trtspec.store.store import Store


class StepPlan:
    """The steps of a build: the targets and all their dependencies, each key once, dependencies first.

    The order follows the targets and the fields of the steps, so equal targets give equal plans.
    """

    def __init__(self, targets: Iterable[Step]) -> None:
        found: dict[str, Step] = {}
        chosen = list(targets)
        for target in chosen:
            _visit(target, found)
        self.steps = tuple(found.values())
        self.targets = frozenset(target.key for target in chosen)


def needed_keys(steps: Sequence[Step], targets: Collection[str], present: Collection[str]) -> set[str]:
    """Return the keys of the outputs that a build needs: those of the targets, and the inputs of needed steps that run.

    `steps` are in plan order. Steps with the keys in `present` do not run, because their outputs exist.
    """
    needed = set(targets)
    for step in reversed(steps):  # the steps that read an output come before the step that writes it
        if step.key in needed and step.key not in present:
            needed |= {each.key for each in step.dependencies}
    return needed


@dataclass(frozen=True)
class StepStatus:
    """The status of a step: "hit" if its output is in the store, "remote" if the remote store has it, else "miss".

    An output that is not in the store and that the build does not need is "unneeded". `why` is the reason of a miss.
    """

    step: Step
    name: str
    key: str
    status: Literal["hit", "remote", "miss", "unneeded"]
    why: str


def plan_status(plan: StepPlan, store: Store) -> list[StepStatus]:
    """Return the status of each step of a plan, in plan order, without changing the store."""
    found: dict[str, StepStatus] = {}
    lookups = {step.key: store.peek(step.key) for step in plan.steps}
    missing = [step.key for step in plan.steps if step.is_shared and not lookups[step.key].entry]
    remote = store.remote.find(missing) if store.remote and missing else frozenset()
    present = remote | {key for key, lookup in lookups.items() if lookup.entry}
    needed = needed_keys(plan.steps, plan.targets, present)
    for step in plan.steps:
        lookup = lookups[step.key]
        if not lookup.entry and step.key not in needed:
            found[step.key] = StepStatus(step, step.name, step.key, "unneeded", "no step that has to run reads it")
            continue
        if step.key in remote:
            found[step.key] = StepStatus(step, step.name, step.key, "remote", "in the team store")
            continue
        misses = [each.name for each in step.dependencies if found[each.key].status == "miss"]
        why = f"input {misses[0]} will be rebuilt" if lookup.why == "never built" and misses else lookup.why
        found[step.key] = StepStatus(step, step.name, step.key, lookup.status, why)
    return list(found.values())


def _visit(step: Step, found: dict[str, Step]) -> None:
    if step.key not in found:
        for dependency in step.dependencies:
            _visit(dependency, found)
        found[step.key] = step


@dataclass(frozen=True)
class DiskNeed:
    """Bytes to be written below `path`, and bytes free on its file system; `what` is the label for messages."""

    what: str
    path: Path
    needed_bytes: int
    free_bytes: int

    @property
    def message(self) -> str:
        space = f"{format_bytes(self.needed_bytes)} needed, {format_bytes(self.free_bytes)} free"
        return f"not enough disk space for the {self.what} at {self.path}: {space}"

    @property
    def is_met(self) -> bool:
        return self.needed_bytes <= self.free_bytes


def plan_disk(status: Sequence[StepStatus], store: Store, out: Path) -> list[DiskNeed]:
    """Return the space needed in the store by missing steps, and at `out` if it cannot hard-link to the store."""
    missing = sum(_missing_bytes(each, store) for each in status if each.status in ("miss", "remote"))
    needs = [disk_need("store", store.root, missing)]
    if _device(out) != _device(store.root):
        needs.append(
            disk_need("artifact", out, sum(_full_bytes(each, store) for each in status if each.status != "unneeded"))
        )
    return needs


def lacking_disk(needs: Sequence[DiskNeed]) -> list[str]:
    """Return a message for each file system whose free space is less than the sum of its needs."""
    by_device: dict[int, list[DiskNeed]] = {}
    for need in needs:
        by_device.setdefault(_device(need.path), []).append(need)
    messages = []
    for shared in by_device.values():
        first, needed = shared[0], sum(need.needed_bytes for need in shared)
        if needed > first.free_bytes:
            what = " and the ".join(need.what for need in shared if need.needed_bytes)
            space = f"{format_bytes(needed)} needed, {format_bytes(first.free_bytes)} free"
            messages.append(f"not enough disk space for the {what}: {space} on the file system of {first.path}")
    return messages


def _missing_bytes(status: StepStatus, store: Store) -> int:
    if status.status == "remote":
        return status.step.output_bytes
    return max(0, status.step.disk_bytes(_nearest(store.root)) - store.resumable_bytes(status.key))


def _full_bytes(status: StepStatus, store: Store) -> int:
    entry = store.peek(status.key).entry if status.status == "hit" else None
    return entry.total_bytes if entry else status.step.output_bytes


def disk_need(what: str, path: Path, needed_bytes: int) -> DiskNeed:
    """Return a DiskNeed with the free space of the file system of `path`, which may not exist yet."""
    return DiskNeed(what, path, needed_bytes, shutil.disk_usage(_nearest(path)).free)


def _device(path: Path) -> int:
    return os.stat(_nearest(path)).st_dev


def _nearest(path: Path) -> Path:
    """Return the nearest existing directory at or above `path`."""
    path = Path(os.path.realpath(path))
    return next(each for each in (path, *path.parents) if each.is_dir())


def format_bytes(nbytes: float) -> str:
    """Return a byte count as text with a binary unit, such as 1.5 GiB."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if nbytes < 1024:
            return f"{nbytes:.0f} {unit}" if unit == "B" else f"{nbytes:.1f} {unit}"
        nbytes /= 1024
    return f"{nbytes:.1f} TiB"
