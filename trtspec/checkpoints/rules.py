# SPDX-License-Identifier: Apache-2.0
"""Rules that map source tensors to target tensors, and the check, from headers alone, that they are complete.

A family lists rules. `match` checks them against a source: every source tensor is used once or named as skipped, every
target tensor is produced once, and every shape agrees with config.json.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from enum import Enum
from itertools import islice

from trtspec.checkpoints.safetensors import TensorInfo
from trtspec.checkpoints.source import Source
from trtspec.core.errors import CheckpointError

CONVERTIBLE = ("BF16", "F16", "F32")
QUANTIZED = "F8_E4M3"
INTEGERS = ("I64",)
SHOWN_PROBLEMS, SHOWN_HINTS = 12, 2


class Stage(Enum):
    """The pipeline stage of a tensor that belongs to no layer."""

    FIRST = "first"
    LAST = "last"


class Split(Enum):
    """How the ranks of a stage share a target.

    Layers that are divided by columns add their bias after the sum over ranks, so it is whole, like norms and routers.
    """

    WHOLE = "whole"
    ROWS = "rows"
    COLUMNS = "columns"
    VOCABULARY = "vocabulary"  # by rows, padded with zeros
    EMBEDDING = "embedding"  # like a vocabulary, if the embedding is divided


def of_rows(split: Split) -> Split:
    """Return how ranks share values that belong to the rows of a matrix split like this: a bias, scales."""
    return Split.WHOLE if split is Split.COLUMNS else split


@dataclass(frozen=True)
class LinearLayer:
    """The neighbours of a linear layer, with which it has to be quantized together.

    `norm` is the norm of its block's input, in the same model layer; with FP8 scales for each row, engines replace the
    two together. `fused` is the target that engines fuse with this one to one matrix.
    """

    norm: str = ""
    fused: str = ""


@dataclass(frozen=True)
class SourceTensor:
    """A source tensor, or some rows of one, from which a target is made.

    `heads` is the number of attention heads that its rows hold; a head is never divided. The tensor is padded with rows
    of zeros to `least_rows`. For a range of rows, `first_row` is where the range begins and `stored_rows` the number of
    rows of the stored tensor. A tensor without a name is not read from the source: it is computed (scales) or zero.
    """

    name: str
    shape: tuple[int, ...]
    heads: int = 0
    least_rows: int = 0
    first_row: int = 0
    stored_rows: int = 0

    @property
    def target_rows(self) -> int:
        """Return the number of its rows in the undivided target."""
        return max(self.shape[0], self.least_rows)

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Return the shape of the source tensor."""
        return (self.stored_rows or self.shape[0], *self.shape[1:])


@dataclass(frozen=True)
class Rule:
    """How one target tensor is made: `sources` are concatenated by rows.

    The target of a layer is named without its prefix ("attention.qkv.weight") and `at` is the layer's number in the
    whole model; any other target has its full name and `at` is its stage. `split` is how ranks share it. `linear` marks
    the weight of a linear layer, which may be FP8. With `experts`, the sources of the first expert come first, then
    those of the second and so on, and the target has a leading dimension of that size. `copy` lets other rules use the
    same sources. `plus` is added to each value, in float32. `dtype` is the target's dtype where it is not the model's;
    integers are copied unchanged.
    """

    target: str
    sources: tuple[SourceTensor, ...]
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
        """Return the name of the module that holds the target, which patterns are matched against."""
        return self.name.rpartition(".")[0]

    @property
    def block(self) -> str:
        """Return the block of the layer that the module belongs to, e.g. "attention"."""
        return self.target.partition(".")[0]


@dataclass(frozen=True)
class Skip:
    """Source tensors that are not needed; `pattern` is a regular expression on the whole name."""

    pattern: str
    reason: str


@dataclass(frozen=True)
class Quantized:
    """The FP8 tensors of a source: its `weights`, and for each of their `scales` the allowed shapes."""

    weights: frozenset[str]
    scales: dict[str, tuple[tuple[int, ...], ...]]


@dataclass(frozen=True)
class Matched:
    """The source tensors found for each rule, by the rule's full name, and the skipped ones with the reason."""

    sources: dict[str, tuple[TensorInfo, ...]]
    skipped: dict[str, str]


def layer_tensor(layer: int, name: str) -> str:
    """Return the full name of a layer's tensor, e.g. layer_tensor(0, "attention.qkv.weight")."""
    return f"transformer.layers.{layer}.{name}"


def match(rules: list[Rule], skips: list[Skip], source: Source, quantized: Quantized | None = None) -> Matched:
    """Find every rule's tensors in `source`; raises one CheckpointError that lists all problems.

    `quantized` names the source tensors that are in FP8 and passed through with their scales.
    """
    quantized = quantized or Quantized(frozenset(), {})
    hints: dict[str, str | None] = {}
    problems = []
    for rule in rules:
        for tensor in rule.sources:
            is_quantized = tensor.name in quantized.weights
            if tensor.name and (problem := _complaint(tensor, rule, source.tensors, is_quantized)):
                problems.append(problem)
                hints[_hint(tensor, rule, source.tensors)] = None
    problems += [
        problem
        for name, shapes in quantized.scales.items()
        if (problem := _scale_complaint(name, shapes, source.tensors))
    ]
    read = (tensor for rule in rules if not rule.copy for tensor in rule.sources if tensor.name)
    used = Counter((tensor.name, tensor.first_row) for tensor in read)
    problems += [f"{name}: used by {count} rules" for (name, _), count in used.items() if count > 1]
    targets = Counter(rule.name for rule in rules)
    problems += [f"{target}: produced by {count} rules" for target, count in targets.items() if count > 1]
    skipped = {}
    compiled = [(re.compile(skip.pattern), skip.reason) for skip in skips]
    mentioned = {tensor.name for rule in rules for tensor in rule.sources}
    for name in source.tensors.keys() - mentioned - quantized.scales.keys():
        reason = next((reason for pattern, reason in compiled if pattern.fullmatch(name)), None)
        if reason:
            skipped[name] = reason
        else:
            problems.append(f"{name}: no rule uses it")
            hints[UNUSED_HINT] = None
    if problems:
        raise _error(sorted(set(problems)), source, "; ".join(islice(hints, SHOWN_HINTS)) or None)
    return Matched(find_parts(rules, source), dict(sorted(skipped.items())))


def find_parts(rules: list[Rule], source: Source) -> dict[str, tuple[TensorInfo, ...]]:
    """Return the source tensors of each rule that has any, by its full name; KeyError for a missing one."""
    return {
        rule.name: tuple(rows_of(tensor, source.tensors[tensor.name]) for tensor in rule.sources)
        for rule in rules
        if all(tensor.name for tensor in rule.sources)
    }


def rows_of(wanted: SourceTensor, stored: TensorInfo) -> TensorInfo:
    """Return the rows of `stored` that belong to `wanted`: `stored` is its tensor, or one with a value for each row."""
    if not wanted.stored_rows:
        return stored
    rows, nbytes = wanted.shape[0], stored.nbytes // wanted.stored_rows
    offset = stored.offset + wanted.first_row * nbytes
    return replace(stored, shape=(rows, *stored.shape[1:]), offset=offset, nbytes=rows * nbytes)


def _complaint(wanted: SourceTensor, rule: Rule, tensors: dict[str, TensorInfo], quantized: bool) -> str | None:
    tensor = tensors.get(wanted.name)
    if tensor is None:
        return f"{wanted.name}: missing"
    if tensor.shape != (shape := wanted.stored_shape):
        what = ", so it is transposed" if tensor.shape == shape[::-1] else ""
        found = f"{wanted.name}: {list(tensor.shape)} in {tensor.file.name}"
        return f"{found}, but config.json makes it {list(shape)}{what}"
    served = (rule.dtype,) if rule.dtype in INTEGERS else (QUANTIZED,) if quantized else CONVERTIBLE
    if tensor.dtype not in served:
        can = f"only {', '.join(served)} can be converted"
        return f"{wanted.name}: dtype {tensor.dtype} in {tensor.file.name}, {can}"
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


UNUSED_HINT = (
    "transformers leaves out tensors that a model of this config.json has no place for, others may not: remove them"
    " from the file, or correct config.json (for biases: attention_bias, mlp_bias)"
)


def _hint(wanted: SourceTensor, rule: Rule, tensors: dict[str, TensorInfo]) -> str:
    """Return what to do about a tensor that is missing, or that has another shape or dtype."""
    tensor = tensors.get(wanted.name)
    if tensor is None:
        if rule.split is Split.VOCABULARY:
            return (
                "set tie_word_embeddings: true in config.json if the embedding is the head too (transformers fills a"
                " missing head with random numbers), else save the checkpoint with its head"
            )
        return (
            "config.json and the weights do not belong together, or a part of the weights is missing: compare"
            " architectures and num_hidden_layers, or download the checkpoint again"
        )
    if tensor.shape != wanted.stored_shape:
        if rule.split in (Split.VOCABULARY, Split.EMBEDDING) and tensor.shape[1:] == wanted.stored_shape[1:]:
            rows = tensor.shape[0]
            return f"set vocab_size: {rows} in config.json, where the vocabulary was resized; transformers needs it too"
        return "config.json and the weights do not belong together: correct the sizes in config.json"
    if rule.dtype in INTEGERS:
        return f"save {wanted.name} as int64"
    return "save the weights as bfloat16, float16 or float32"


def _error(problems: list[str], source: Source, hint: str | None) -> CheckpointError:
    shown = "\n  ".join(problems[:SHOWN_PROBLEMS])
    more = f"\n  ... and {len(problems) - SHOWN_PROBLEMS} more" if len(problems) > SHOWN_PROBLEMS else ""
    noun = "tensor does" if len(problems) == 1 else "tensors do"
    message = f"{len(problems)} {noun} not add up:\n  {shown}{more}"
    return CheckpointError(message, where=str(source.root), hint=hint)
