# SPDX-License-Identifier: Apache-2.0
"""Which source tensors make which target tensor, and the proof from headers that nothing is forgotten.

A family lists rules; `match` holds them against a source: every source tensor is used once or named as skipped,
every target tensor is produced once, every shape is what config.json says.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from enum import Enum

from trtspec.checkpoint.safetensors import TensorInfo
from trtspec.checkpoint.source import Source
from trtspec.errors import CheckpointError

CONVERTIBLE = ("BF16", "F16", "F32")
QUANTIZED = "F8_E4M3"
INTEGERS = ("I64",)
SHOWN_PROBLEMS = 12


class Stage(Enum):
    """Which pipeline stage holds a tensor that belongs to no layer."""

    FIRST = "first"
    LAST = "last"


class Split(Enum):
    """How the ranks of a stage share a target.

    Layers that are divided by columns add their bias after the sum over ranks, so that is whole, as norms and routers.
    """

    WHOLE = "whole"
    ROWS = "rows"
    COLUMNS = "columns"
    VOCABULARY = "vocabulary"  # by rows, padded with zeros
    EMBEDDING = "embedding"  # like a vocabulary, where the embedding is divided at all


def of_rows(split: Split) -> Split:
    """Return how ranks share what belongs to the rows of a matrix that they share so: a bias, scales."""
    return Split.WHOLE if split is Split.COLUMNS else split


@dataclass(frozen=True)
class LinearLayer:
    """What an engine does with a linear layer beside multiplying, which says how far its weight may be FP8 alone.

    `norm` is the norm, in the same layer of the model, of what goes into the layer's block; engines change the two
    together where FP8 has a scale for each row. `fused` is the target that engines make one matrix of with this one.
    """

    norm: str = ""
    fused: str = ""


@dataclass(frozen=True)
class Part:
    """A source tensor that a target is made of; `heads` says that its rows are so many heads, which stay whole.

    A part without a name is no tensor of a source: scales, which are computed, and what is zero. A target has
    `least_rows` rows at least for it; those that the source lacks are zero. Of a source tensor that holds more than the
    part, the part is the rows from `first_row` on, and `stored_rows` is how many there are in all.
    """

    name: str
    shape: tuple[int, ...]
    heads: int = 0
    least_rows: int = 0
    first_row: int = 0
    stored_rows: int = 0

    @property
    def target_rows(self) -> int:
        """Return how many rows of the undivided target it makes."""
        return max(self.shape[0], self.least_rows)

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Return the shape of the source tensor."""
        return (self.stored_rows or self.shape[0], *self.shape[1:])


@dataclass(frozen=True)
class Rule:
    """`target` is the rows of the `parts`, one below the other.

    A target of a layer is named without its prefix ("attention.qkv.weight") and `at` is the layer's number in the whole
    model; any other target is named whole and `at` is its stage. `split` is how ranks share it; `linear` makes it the
    weight of a linear layer, which may be FP8. With `experts` the parts are those of the first expert, then of the
    second and so on, and the target has a leading dimension of that size. `copy` allows that another rule uses the same
    parts. `plus` is added to each value, in float32. `dtype` is what the target becomes where that is not the model's
    own; integers are copied as they are.
    """

    target: str
    parts: tuple[Part, ...]
    at: int | Stage
    split: Split = Split.WHOLE
    linear: LinearLayer | None = None
    experts: int = 0
    copy: bool = False
    plus: float = 0.0
    dtype: str = ""

    @property
    def name(self) -> str:
        """Return the target's full name in an unsharded checkpoint."""
        return self.target if isinstance(self.at, Stage) else layer_tensor(self.at, self.target)

    @property
    def module(self) -> str:
        """Return the name of the module that holds the target, which is what patterns are matched with."""
        return self.name.rpartition(".")[0]

    @property
    def block(self) -> str:
        """Return the part of a layer that the module belongs to, e.g. "attention"."""
        return self.target.partition(".")[0]


@dataclass(frozen=True)
class Skip:
    """Source tensors that are not needed; `pattern` is a regular expression on the whole name."""

    pattern: str
    reason: str


@dataclass(frozen=True)
class Quantized:
    """What a source has in FP8 already: its `weights`, and for each of their `scales` the shapes it may have."""

    weights: frozenset[str]
    scales: dict[str, tuple[tuple[int, ...], ...]]


@dataclass(frozen=True)
class Matched:
    """The source tensors found for each rule's parts, by the rule's full name, and the skipped ones with the reason."""

    parts: dict[str, tuple[TensorInfo, ...]]
    skipped: dict[str, str]


def layer_tensor(layer: int, name: str) -> str:
    """Return the full name of a layer's tensor, e.g. layer_tensor(0, "attention.qkv.weight")."""
    return f"transformer.layers.{layer}.{name}"


def match(rules: list[Rule], skips: list[Skip], source: Source, quantized: Quantized | None = None) -> Matched:
    """Find every rule's tensors in `source`; raises one CheckpointError that lists all that does not add up.

    `quantized` names the source tensors that are in FP8 and taken over as such, with their scales.
    """
    quantized = quantized or Quantized(frozenset(), {})
    problems = [
        problem
        for rule in rules
        for part in rule.parts
        if part.name and (problem := _complaint(part, rule, source.tensors, part.name in quantized.weights))
    ]
    problems += [
        problem
        for name, shapes in quantized.scales.items()
        if (problem := _scale_complaint(name, shapes, source.tensors))
    ]
    parts = (part for rule in rules if not rule.copy for part in rule.parts if part.name)
    used = Counter((part.name, part.first_row) for part in parts)
    problems += [f"{name}: used by {count} rules" for (name, _), count in used.items() if count > 1]
    targets = Counter(rule.name for rule in rules)
    problems += [f"{target}: produced by {count} rules" for target, count in targets.items() if count > 1]
    skipped = {}
    compiled = [(re.compile(skip.pattern), skip.reason) for skip in skips]
    mentioned = {part.name for rule in rules for part in rule.parts}
    for name in source.tensors.keys() - mentioned - quantized.scales.keys():
        reason = next((reason for pattern, reason in compiled if pattern.fullmatch(name)), None)
        if reason:
            skipped[name] = reason
        else:
            problems.append(f"{name}: no rule uses it")
    if problems:
        raise _error(sorted(set(problems)), source)
    return Matched(find_parts(rules, source), dict(sorted(skipped.items())))


def find_parts(rules: list[Rule], source: Source) -> dict[str, tuple[TensorInfo, ...]]:
    """Return the source tensors of each rule that has any, by its full name; KeyError for one that is not there."""
    return {
        rule.name: tuple(rows_of(part, source.tensors[part.name]) for part in rule.parts)
        for rule in rules
        if all(part.name for part in rule.parts)
    }


def rows_of(part: Part, tensor: TensorInfo) -> TensorInfo:
    """Return a part's own rows of its source tensor, or of a tensor with a row for each of that one's."""
    if not part.stored_rows:
        return tensor
    rows, nbytes = part.shape[0], tensor.nbytes // part.stored_rows
    offset = tensor.offset + part.first_row * nbytes
    return replace(tensor, shape=(rows, *tensor.shape[1:]), offset=offset, nbytes=rows * nbytes)


def _complaint(part: Part, rule: Rule, tensors: dict[str, TensorInfo], quantized: bool) -> str | None:
    tensor = tensors.get(part.name)
    if tensor is None:
        return f"{part.name}: missing"
    if tensor.shape != (shape := part.stored_shape):
        return f"{part.name}: {list(tensor.shape)} in {tensor.file.name}, but config.json makes it {list(shape)}"
    served = (rule.dtype,) if rule.dtype in INTEGERS else (QUANTIZED,) if quantized else CONVERTIBLE
    if tensor.dtype not in served:
        can = f"only {', '.join(served)} can be converted"
        return f"{part.name}: dtype {tensor.dtype} in {tensor.file.name}, {can}"
    return None


def _scale_complaint(name: str, shapes: tuple[tuple[int, ...], ...], tensors: dict[str, TensorInfo]) -> str | None:
    tensor = tensors.get(name)
    if tensor is None:
        return f"{name}: missing"
    if tensor.shape not in shapes:
        wanted = " or ".join(str(list(shape)) for shape in shapes)
        return f"{name}: {list(tensor.shape)} in {tensor.file.name}, but a scale here has the shape {wanted}"
    if tensor.dtype not in CONVERTIBLE:
        return f"{name}: dtype {tensor.dtype} in {tensor.file.name}, but scales are {', '.join(CONVERTIBLE)}"
    return None


def _error(problems: list[str], source: Source) -> CheckpointError:
    shown = "\n  ".join(problems[:SHOWN_PROBLEMS])
    more = f"\n  ... and {len(problems) - SHOWN_PROBLEMS} more" if len(problems) > SHOWN_PROBLEMS else ""
    noun = "tensor does" if len(problems) == 1 else "tensors do"
    return CheckpointError(f"{len(problems)} {noun} not add up:\n  {shown}{more}", where=str(source.root))
