# SPDX-License-Identifier: Apache-2.0
"""Which source tensors make which target tensor, and the proof from headers that nothing is forgotten.

A family lists rules; `match` holds them against a source: every source tensor is used once or named as skipped,
every target tensor is produced once, every shape is what config.json says.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from trtspec.checkpoint.safetensors import TensorInfo
from trtspec.checkpoint.source import Source
from trtspec.errors import CheckpointError

CONVERTIBLE = ("BF16", "F16", "F32")
SHOWN_PROBLEMS = 12


@dataclass(frozen=True)
class Rule:
    """`target` is the rows of the `parts`, one below the other; a part is (source name, its shape)."""

    target: str
    parts: tuple[tuple[str, tuple[int, ...]], ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the target's shape."""
        return (sum(shape[0] for _, shape in self.parts), *self.parts[0][1][1:])


@dataclass(frozen=True)
class Skip:
    """Source tensors that are not needed; `pattern` is a regular expression on the whole name."""

    pattern: str
    reason: str


@dataclass(frozen=True)
class Matched:
    """The rules with the source tensors found for them, and the skipped ones with the reason."""

    parts: dict[str, tuple[TensorInfo, ...]]
    skipped: dict[str, str]


def match(rules: list[Rule], skips: list[Skip], source: Source) -> Matched:
    """Find every rule's tensors in `source`; raises one CheckpointError that lists all that does not add up."""
    problems = [
        problem for rule in rules for name, shape in rule.parts if (problem := _complaint(name, shape, source.tensors))
    ]
    used = Counter(name for rule in rules for name, _ in rule.parts)
    problems += [f"{name}: used by {count} rules" for name, count in used.items() if count > 1]
    targets = Counter(rule.target for rule in rules)
    problems += [f"{target}: produced by {count} rules" for target, count in targets.items() if count > 1]
    skipped = {}
    for name in source.tensors.keys() - used.keys():
        skip = next((skip for skip in skips if re.fullmatch(skip.pattern, name)), None)
        if skip:
            skipped[name] = skip.reason
        else:
            problems.append(f"{name}: no rule uses it")
    if problems:
        raise _error(sorted(problems), source)
    parts = {rule.target: tuple(source.tensors[name] for name, _ in rule.parts) for rule in rules}
    return Matched(parts, dict(sorted(skipped.items())))


def _complaint(name: str, shape: tuple[int, ...], tensors: dict[str, TensorInfo]) -> str | None:
    tensor = tensors.get(name)
    if tensor is None:
        return f"{name}: missing"
    if tensor.shape != shape:
        return f"{name}: {list(tensor.shape)} in {tensor.file.name}, but config.json makes it {list(shape)}"
    if tensor.dtype not in CONVERTIBLE:
        return f"{name}: dtype {tensor.dtype} in {tensor.file.name}, only {', '.join(CONVERTIBLE)} can be converted"
    return None


def _error(problems: list[str], source: Source) -> CheckpointError:
    shown = "\n  ".join(problems[:SHOWN_PROBLEMS])
    more = f"\n  ... and {len(problems) - SHOWN_PROBLEMS} more" if len(problems) > SHOWN_PROBLEMS else ""
    noun = "tensor does" if len(problems) == 1 else "tensors do"
    return CheckpointError(f"{len(problems)} {noun} not add up:\n  {shown}{more}", where=str(source.root))
