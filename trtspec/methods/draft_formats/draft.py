# SPDX-License-Identifier: Apache-2.0
"""Reads a draft from a source, independent of the dialect in which it is written."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from trtspec.checkpoints.model_config import ModelConfig
from trtspec.checkpoints.rules import match
from trtspec.checkpoints.safetensors import TensorInfo
from trtspec.checkpoints.source import Source
from trtspec.checkpoints.source_model import SourceModel
from trtspec.checkpoints.trtllm import MOST_LAYERS
from trtspec.core.diagnostics import Diagnostic
from trtspec.core.errors import CheckpointError
from trtspec.families.decoder import HEAD_DEFAULTS, read_decoder
from trtspec.methods.base import HeadTarget, find_method, methods
from trtspec.methods.draft_formats.dialect import OF_THE_TARGET, schemas_for
from trtspec.methods.draft_formats.facts import READERS, SOFT, Facts
from trtspec.methods.draft_formats.heads import KIND as MEDUSA
from trtspec.methods.draft_formats.heads import check_heads, described_target
from trtspec.methods.draft_formats.keys import LEFT_OUT, Carried, carried_keys, check_keys, layer_keys
from trtspec.methods.draft_formats.names import shared_names
from trtspec.methods.head_checks import count_layers
from trtspec.methods.medusa import OF_THE_BASE, SHARED

# Tensors that the methods' rules skip and leave to engines.
_OPTIONAL = re.compile(
    r"(.*\.)?t2d|verifier_.*|.*rotary_emb\.inv_freq"
    r"|confidence_(head\.)?proj\.(weight|bias)|(markov_head\.)?(gate|joint)_proj\.(weight|bias)"
)


@dataclass(frozen=True)
class SourceDraft:
    """A draft of one `kind` (a method's name), read from the dialect `dialect`.

    `layer` is the config of its layers, and `tensors` are by the names that most dialects share. `carried` are keys by
    dialect that do not affect computation. `beside` are the target's tensors in the same files, by their names.
    `warnings` come from the methods' readers.
    """

    kind: str
    dialect: str
    facts: Facts
    layer: dict[str, Any]
    tensors: dict[str, TensorInfo]
    carried: Carried
    where: str
    beside: dict[str, TensorInfo]
    warnings: tuple[Diagnostic, ...]

    @property
    def left_out(self) -> tuple[str, ...]:
        """Return the names of shared target tensors that an earlier conversion omitted."""
        names = self.carried.get("facts", {}).get(LEFT_OUT)
        return tuple(name for name in OF_THE_TARGET if isinstance(names, list) and name in names)

    def refuse(self, message: str, hint: str | None = None) -> CheckpointError:
        """Return the error to raise for this draft."""
        return CheckpointError(message, where=self.where, hint=hint)


def read_draft(source: Source, target: SourceModel | None = None, drop: frozenset[str] = frozenset()) -> SourceDraft:
    """Read a draft in any dialect; without a target, it is checked against the target described in its config.

    `drop` are keys of config.json to ignore. Raise CheckpointError if the source is not a draft, is inconsistent, does
    not fit the target, or has unknown keys.
    """
    kind = _detect_kind(source)
    if is_quantized(source):
        raise source.reader.refuse(
            "its weights are quantized; conversion requires unquantized weights", "use the draft before quantization"
        )
    config = target.config if target else described_target(source) if kind == MEDUSA else _claimed(source)
    found, skipped = _check(source, kind, config, target)
    warnings = (*found, *(check_heads(source, target) if kind == MEDUSA else ()))
    name = _detect_dialect(source, kind)
    form = schemas_for(kind)[name]
    check_keys(source, kind, form, drop)
    carried = carried_keys(source, name, form, drop)
    facts = READERS[kind](source, config)
    facts[SOFT] = target.config.num_layers if target else facts[SOFT] or _soft(carried)
    tensors = shared_names(source, kind, form)
    beside = {name: source.tensors[name] for name, why in skipped.items() if why == OF_THE_BASE.reason}
    layer = layer_keys(source, form)
    if layer.get("num_hidden_layers") and (layers := count_layers(tensors)):
        layer["num_hidden_layers"] = layers  # some heads have the target's number here
    return SourceDraft(kind, name, facts, layer, tensors, carried, str(source.root), beside, warnings)


def is_quantized(source: Source) -> bool:
    """Return whether a checkpoint declares quantized weights."""
    return bool(source.quantization or source.config.get("quantization_config"))


def _detect_kind(source: Source) -> str:
    for kind in READERS:
        suggest = methods()[kind].suggest
        if suggest and suggest(source):
            return kind
    raise source.reader.refuse(f"not a convertible draft; supported kinds: {', '.join(READERS)}", "name a draft head")


def _claimed(source: Source) -> ModelConfig:
    """Return the target's config as far as a draft's config describes it."""
    section = source.reader.section("transformer_layer_config") or source.reader
    flat = section.with_defaults(HEAD_DEFAULTS).replacing(architectures=["LlamaForCausalLM"])
    config = read_decoder(flat, "auto")
    hidden = source.reader.positive("target_hidden_size", config.hidden_size)
    layers = source.reader.positive("num_target_layers", MOST_LAYERS, MOST_LAYERS)
    return replace(config, hidden_size=hidden, num_layers=layers)


def _check(
    source: Source, kind: str, config: ModelConfig, target: SourceModel | None
) -> tuple[Sequence[Diagnostic], dict[str, str]]:
    """Return (warnings, {skipped tensor: reason}).

    Raise CheckpointError for errors that `trtspec check` reports.
    """
    method = find_method(kind)
    suggestion = method.suggest(source) if method.suggest else None
    if method.read_head is None or suggestion is None:
        raise ValueError(f"{kind} does not use a draft head")
    options = method.options(**suggestion.options)
    head = method.read_head(source, HeadTarget(config, target.rules if target else (), 1), options)
    skipped = match(head.rules, head.skips, source).skipped
    unknown = [name for name, why in skipped.items() if not (_OPTIONAL.fullmatch(name) or why == OF_THE_BASE.reason)]
    if unknown:
        message = f"has tensors unknown to all dialects of {kind}: {', '.join(unknown[:8])}"
        hint = "remove them from the file if they are unused"
        raise CheckpointError(message, where=str(source.root), hint=hint)
    errors = [each for each in head.diagnostics if each.severity == "error" and each.code != SHARED]
    if errors:
        raise CheckpointError("; ".join(each.message for each in errors), where=str(source.root), hint=errors[0].hint)
    return [each for each in head.diagnostics if each.code != SHARED], skipped


def _detect_dialect(source: Source, kind: str) -> str:
    """Return the dialect with the largest share of its marks present; of equal shares, the one with the most marks."""
    marks = {name: [_has(source, mark) for mark in form.marks] for name, form in schemas_for(kind).items()}
    counted = {name: (sum(found) / len(found), sum(found)) for name, found in marks.items()}
    return max(counted, key=lambda name: counted[name])


def _has(source: Source, mark: str) -> bool:
    outer, _, inner = mark.partition(".")
    section = source.config.get(outer)
    if inner and isinstance(section, dict):
        return inner in section
    return section is not None or any(name.startswith(mark) for name in source.tensors)


def _soft(carried: Carried) -> int | None:
    number = carried.get("facts", {}).get(SOFT)
    return number if type(number) is int else None
