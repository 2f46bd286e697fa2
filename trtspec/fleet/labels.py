# SPDX-License-Identifier: Apache-2.0
"""Labels of nodes, what a step requires of a node, and the explanation if no node fits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches

MAX_LISTED = 6  # groups of equal nodes in an explanation
Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Requirement:
    """What a step requires of its node: labels with their values, and a number of devices (GPUs).

    An `exclusive` step, such as a measurement, gets all slots and devices of its node while it runs.
    """

    labels: Labels = ()
    devices: int = 0
    exclusive: bool = False

    def __str__(self) -> str:
        parts = [f"{name}={value}" for name, value in self.labels]
        return " ".join(parts + ([f"GPUs>={self.devices}"] if self.devices else [])) or "any node"


@dataclass(frozen=True)
class Node:
    """A node of a pool; `slots` is the number of steps that it runs at once. `fits_all` ignores requirements."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    slots: int = 1
    devices: int = 0
    fits_all: bool = False

    def lacks(self, requirement: Requirement) -> list[str]:
        """Return the parts of a requirement that this node does not meet."""
        if self.fits_all:
            return []
        missing = [f"{name}={value}" for name, value in requirement.labels if self.labels.get(name) != value]
        return missing + ([f"GPUs>={requirement.devices}"] if requirement.devices > self.devices else [])


def choose_requirement(alternatives: Sequence[Requirement], nodes: Iterable[Node]) -> Requirement | None:
    """Return the first alternative that any node meets, or None."""
    present = list(nodes)
    return next((each for each in alternatives if any(not node.lacks(each) for node in present)), None)


def explain_unplaceable(alternatives: Sequence[Requirement], nodes: Sequence[Node]) -> str:
    """Return why no node meets any of the alternatives: what each group of equal nodes lacks."""
    wanted = " or ".join(map(str, alternatives))
    if not nodes:
        return f"it requires {wanted}, and the pool has no nodes"
    groups: dict[tuple[Labels, int], list[str]] = {}
    for node in nodes:
        groups.setdefault((tuple(sorted(node.labels.items())), node.devices), []).append(node.name)
    lines = []
    for (labels, devices), names in list(groups.items())[:MAX_LISTED]:
        lacking = min((Node("", dict(labels), 1, devices).lacks(each) for each in alternatives), key=len)
        having = ", ".join(f"{name}={value}" for name, value in labels) or "no labels"
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        gpus = f", GPUs={devices}" if devices else ""
        lines.append(f"{names[0]}{more} ({having}{gpus}) lacks {', '.join(lacking)}")
    if len(groups) > MAX_LISTED:
        lines.append(f"{len(groups) - MAX_LISTED} further groups of nodes do not fit either")
    return f"it requires {wanted}; " + "; ".join(lines)


def suggest_labels(alternatives: Sequence[Requirement], nodes: Sequence[Node]) -> str:
    """Return a hint with the nearest name or value that nodes have for each label that none has, or ""."""
    present: dict[str, set[str]] = {}
    for node in nodes:
        for name, value in node.labels.items():
            present.setdefault(name, set()).add(value)
    wanted = dict.fromkeys(pair for each in alternatives for pair in each.labels)
    return "; ".join(filter(None, (_suggest_label(name, value, present) for name, value in wanted)))


def _suggest_label(name: str, value: str, present: Mapping[str, set[str]]) -> str:
    """Return what the nodes have instead of a label; "" if some have it, or if they have nothing similar."""
    if values := present.get(name):
        if value in values:
            return ""
        near = _nearest(value, values)
        listed = ", ".join(sorted(values)[:MAX_LISTED]) + (", ..." if len(values) > MAX_LISTED else "")
        return f"did you mean {name}={near}?" if near else f"the label {name} of the nodes is {listed}"
    near = _nearest(name, present)
    return f"no node has a label {name}; did you mean {near}?" if near else ""


def _nearest(text: str, known: Iterable[str]) -> str:
    """Return the most similar of `known`, without regard to case, or ""."""
    by_lower = {each.lower(): each for each in sorted(known)}
    return next((by_lower[each] for each in get_close_matches(text.lower(), by_lower, 1)), "")
