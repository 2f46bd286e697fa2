# SPDX-License-Identifier: Apache-2.0
"""Interface of model families: conversion rules, their check against a source, and the lookup of a source's family.

A family lists rules. `match` checks them against a source, from headers alone: every source tensor is used once or
skipped explicitly, every target tensor is produced once, and every shape agrees with config.json.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import Enum
from itertools import islice

from trtspec.checkpoints.model_config import ConfigReader, ModelConfig
from trtspec.checkpoints.safetensors import TensorInfo
from trtspec.checkpoints.source import Source
from trtspec.core.diagnostics import quote_value
from trtspec.core.errors import CheckpointError, UnsupportedArchitecture
from trtspec.core.registry import discover, discover_all, provider_version

CONVERTIBLE = ("BF16", "F16", "F32")
QUANTIZED = "F8_E4M3"
INTEGERS = ("I64",)
SHOWN_PROBLEMS, SHOWN_HINTS = 12, 2


class Stage(Enum):
    FIRST = "first"
    LAST = "last"


class Split(Enum):
    """Division of a target tensor over the ranks of a stage.

    Layers divided by columns add their bias after the sum over ranks, so the bias is not divided. Norms and routers are
    not divided either.
    """

    WHOLE = "whole"
    ROWS = "rows"
    COLUMNS = "columns"
    VOCABULARY = "vocabulary"  # by rows, padded with zeros
    EMBEDDING = "embedding"  # VOCABULARY if the mapping divides embeddings, else WHOLE


def row_split(split: Split) -> Split:
    """Return the split of per-row values, such as a bias or scales, of a matrix that is divided by `split`."""
    return Split.WHOLE if split is Split.COLUMNS else split


@dataclass(frozen=True)
class LinearLayer:
    """Constraints on the quantization of a linear layer.

    `norm` is the norm of the block's input, in the same model layer; with per-row FP8 scales, engines replace both
    together. `fused` is the target tensor that engines fuse with this one into one matrix.
    """

    norm: str = ""
    fused: str = ""


@dataclass(frozen=True)
class SourceTensor:
    """A source tensor, or a range of its rows, from which a target tensor is made.

    `heads` is the number of attention heads in its rows; a head is never divided. The tensor is padded with rows of
    zeros to `least_rows`. For a range, `first_row` is its first row and `stored_rows` the number of rows of the stored
    tensor. A tensor without a name is computed (scales) or zero.
    """

    name: str
    shape: tuple[int, ...]
    heads: int = 0
    least_rows: int = 0
    first_row: int = 0
    stored_rows: int = 0

    @property
    def target_rows(self) -> int:
        return max(self.shape[0], self.least_rows)

    @property
    def stored_shape(self) -> tuple[int, ...]:
        return (self.stored_rows or self.shape[0], *self.shape[1:])


@dataclass(frozen=True)
class Rule:
    """The composition of one target tensor: `sources` are concatenated by rows.

    The target of a layer is named without its prefix ("attention.qkv.weight") and `at` is the layer's number in the
    whole model; any other target has its full name and `at` is its stage. `linear` marks the weight of a linear layer,
    which may be FP8. With `experts`, the sources are listed expert by expert, and the target has a leading dimension of
    that size. With `copy`, other rules may use the same sources. `plus` is added to each value, in float32. `dtype`
    overrides the model's dtype; integers are copied unchanged.
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
        """Return the target tensor's full name in an unsharded checkpoint."""
        return self.target if isinstance(self.at, Stage) else layer_tensor(self.at, self.target)

    @property
    def module(self) -> str:
        """Return the name of the module that contains the target tensor; quantization patterns match this name."""
        return self.name.rpartition(".")[0]

    @property
    def block(self) -> str:
        """Return the block of the layer that contains the target tensor, e.g. "attention"."""
        return self.target.partition(".")[0]


@dataclass(frozen=True)
class Skip:
    """Source tensors that are not converted; `pattern` is a regular expression for the whole name."""

    pattern: str
    reason: str


@dataclass(frozen=True)
class Quantized:
    """The FP8 tensors of a source: the names of its weights, and the allowed shapes of each scale by name."""

    weights: frozenset[str]
    scales: dict[str, tuple[tuple[int, ...], ...]]


@dataclass(frozen=True)
class Matched:
    """The source tensors of each rule, by the rule's full name, and the skipped tensors with the reasons."""

    sources: dict[str, tuple[TensorInfo, ...]]
    skipped: dict[str, str]


def layer_tensor(layer: int, name: str) -> str:
    """Return the full name of a layer's tensor, e.g. layer_tensor(0, "attention.qkv.weight")."""
    return f"transformer.layers.{layer}.{name}"


def match(rules: list[Rule], skips: list[Skip], source: Source, quantized: Quantized | None = None) -> Matched:
    """Find every rule's tensors in `source`; raise one CheckpointError that lists all problems.

    `quantized` names the source tensors that are already FP8 and are copied with their scales.
    """
    quantized = quantized or Quantized(frozenset(), {})
    hints: dict[str, str | None] = {}
    problems = []
    for rule in rules:
        for tensor in rule.sources:
            is_quantized = tensor.name in quantized.weights
            if tensor.name and (problem := _tensor_problem(tensor, rule, source.tensors, is_quantized)):
                problems.append(problem)
                hints[_hint(tensor, rule, source.tensors)] = None
    problems += [
        problem
        for name, shapes in quantized.scales.items()
        if (problem := _scale_problem(name, shapes, source.tensors))
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
    """Return the source tensors of each rule by the rule's full name; rules with unnamed sources are omitted."""
    return {
        rule.name: tuple(select_rows(tensor, source.tensors[tensor.name]) for tensor in rule.sources)
        for rule in rules
        if all(tensor.name for tensor in rule.sources)
    }


def select_rows(wanted: SourceTensor, stored: TensorInfo) -> TensorInfo:
    """Return the rows of `stored` that `wanted` selects.

    `stored` is the tensor named by `wanted`, or a tensor with one value for each of its rows.
    """
    if not wanted.stored_rows:
        return stored
    rows, nbytes = wanted.shape[0], stored.nbytes // wanted.stored_rows
    offset = stored.offset + wanted.first_row * nbytes
    return replace(stored, shape=(rows, *stored.shape[1:]), offset=offset, nbytes=rows * nbytes)


def _tensor_problem(wanted: SourceTensor, rule: Rule, tensors: dict[str, TensorInfo], quantized: bool) -> str | None:
    tensor = tensors.get(wanted.name)
    if tensor is None:
        return f"{wanted.name}: missing"
    if tensor.shape != (shape := wanted.stored_shape):
        transposed = "; it is transposed" if tensor.shape == shape[::-1] else ""
        found = f"{wanted.name}: {list(tensor.shape)} in {tensor.file.name}"
        return f"{found}, but {list(shape)} according to config.json{transposed}"
    supported = (rule.dtype,) if rule.dtype in INTEGERS else (QUANTIZED,) if quantized else CONVERTIBLE
    if tensor.dtype not in supported:
        return f"{wanted.name}: dtype {tensor.dtype} in {tensor.file.name}; supported: {', '.join(supported)}"
    return None


def _scale_problem(name: str, shapes: tuple[tuple[int, ...], ...], tensors: dict[str, TensorInfo]) -> str | None:
    tensor = tensors.get(name)
    if tensor is None:
        return f"{name}: missing"
    if tensor.shape not in shapes:
        wanted = " or ".join(str(list(shape)) for shape in shapes)
        return f"{name}: {list(tensor.shape)} in {tensor.file.name}, but its scale must have the shape {wanted}"
    if tensor.dtype not in CONVERTIBLE:
        return f"{name}: dtype {tensor.dtype} in {tensor.file.name}, but scales must be {', '.join(CONVERTIBLE)}"
    return None


UNUSED_HINT = (
    "transformers ignores tensors that config.json does not describe, other engines may not; remove them from the"
    " file, or correct config.json (for biases: attention_bias, mlp_bias)"
)


def _hint(wanted: SourceTensor, rule: Rule, tensors: dict[str, TensorInfo]) -> str:
    """Return a hint for a tensor that is missing or has an unexpected shape or dtype."""
    tensor = tensors.get(wanted.name)
    if tensor is None:
        if rule.split is Split.VOCABULARY:
            return (
                "set tie_word_embeddings: true in config.json if the head is tied to the embedding (transformers fills"
                " a missing head with random numbers), else save the checkpoint with its head"
            )
        return (
            "config.json does not match the weights, or some weights are missing: compare architectures and"
            " num_hidden_layers, or download the checkpoint again"
        )
    if tensor.shape != wanted.stored_shape:
        if rule.split in (Split.VOCABULARY, Split.EMBEDDING) and tensor.shape[1:] == wanted.stored_shape[1:]:
            rows = tensor.shape[0]
            return f"if the vocabulary was resized, set vocab_size: {rows} in config.json; transformers needs it too"
        return "config.json does not match the weights: correct the sizes in config.json"
    if rule.dtype in INTEGERS:
        return f"save {wanted.name} as int64"
    return "save the weights as bfloat16, float16 or float32"


def _error(problems: list[str], source: Source, hint: str | None) -> CheckpointError:
    shown = "\n  ".join(problems[:SHOWN_PROBLEMS])
    more = f"\n  ... and {len(problems) - SHOWN_PROBLEMS} more" if len(problems) > SHOWN_PROBLEMS else ""
    noun = "tensor does" if len(problems) == 1 else "tensors do"
    message = f"{len(problems)} {noun} not add up:\n  {shown}{more}"
    return CheckpointError(message, where=str(source.root), hint=hint)


PACKAGE, ATTRIBUTE = "trtspec.families", "FAMILY"


@dataclass(frozen=True)
class Family:
    """A model family, defined as `FAMILY` in a module of `trtspec.families` or registered as an entry point.

    `architectures` are the supported names in config.json. `read` maps config.json (with the requested dtype, or
    "auto") to a ModelConfig. `rules` lists every tensor of the converted checkpoint, and `skips` the source tensors
    that are not converted.
    """

    architectures: tuple[str, ...]
    read: Callable[[ConfigReader, str], ModelConfig]
    rules: Callable[[ModelConfig], list[Rule]]
    skips: Callable[[ModelConfig], list[Skip]]


def family_version(name: str) -> str:
    """Return the name and version of the installed package that provides a family; "" for a built-in one."""
    return "" if name in discover(PACKAGE, ATTRIBUTE) else provider_version(PACKAGE, name)


def find_family(source: Source) -> tuple[str, Family]:
    """Return (name, family) of a source; raise UnsupportedArchitecture, with the supported names, if none matches."""
    reader = source.reader
    names = source.config.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        raise reader.refuse_value(f"architectures is {quote_value(names)}, expected a list with one name")
    families: dict[str, Family] = {}
    for look in (discover, discover_all):
        families = look(PACKAGE, ATTRIBUTE)
        for name, family in families.items():
            if names[0] in family.architectures:
                return name, family
    known = sorted(architecture for family in families.values() for architecture in family.architectures)
    error = reader.unsupported(f"architecture {names[0]!r} is not supported; supported: {', '.join(known)}")
    hint = f"{error.hint}; docs/extending.md describes how to add a family"
    raise UnsupportedArchitecture(error.message, architecture=names[0], where=reader.where, hint=hint)
