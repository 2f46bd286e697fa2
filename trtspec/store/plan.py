# SPDX-License-Identifier: Apache-2.0
"""Order the steps that a set of targets needs, and determine which of them have to run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from trtspec.store.step import Step
from trtspec.store.store import Store


class StepPlan:
    """The targets and all their dependencies: each key once, dependencies first.

    The order follows the targets and the fields of the steps, so equal targets give equal plans.
    """

    def __init__(self, targets: Iterable[Step]) -> None:
        found: dict[str, Step] = {}
        for target in targets:
            _visit(target, found)
        self.steps = tuple(found.values())


@dataclass(frozen=True)
class StepStatus:
    """Whether a step's output is in the store, and if not, why."""

    step: Step
    name: str
    key: str
    status: Literal["hit", "miss"]
    why: str


def plan_status(plan: StepPlan, store: Store) -> list[StepStatus]:
    """Return for each step of a plan whether it will run, without changing the store."""
    found: dict[str, StepStatus] = {}
    for step in plan.steps:
        lookup = store.peek(step.key)
        misses = [each.name for each in step.dependencies if found[each.key].status == "miss"]
        why = f"input {misses[0]} will be rebuilt" if lookup.why == "never built" and misses else lookup.why
        found[step.key] = StepStatus(step, step.name, step.key, lookup.status, why)
    return list(found.values())


def _visit(step: Step, found: dict[str, Step]) -> None:
    if step.key not in found:
        for dependency in step.dependencies:
            _visit(dependency, found)
        found[step.key] = step
