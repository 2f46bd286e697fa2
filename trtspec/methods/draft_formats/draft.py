# SPDX-License-Identifier: Apache-2.0
"""Reads a draft from a source, whichever format it is written in: its kind, facts, tensors and faults."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trtspec.checkpoints.model_config import ConfigReader, ModelConfig
from trtspec.checkpoints.rules import find_parts, match
from trtspec.checkpoints.safetensors import TensorInfo, read_tensor
from trtspec.checkpoints.source import Source
from trtspec.checkpoints.source_model import SourceModel
from trtspec.checkpoints.trtllm import EMBEDDING as TARGET_EMBEDDING
from trtspec.checkpoints.trtllm import LM_HEAD as TARGET_LM_HEAD
from trtspec.checkpoints.trtllm import MOST_LAYERS
from trtspec.core.diagnostics import Diagnostic
from trtspec.core.errors import CheckpointError
from trtspec.families.decoder import HEAD_DEFAULTS, read_decoder
from trtspec.methods.base import HeadTarget, find_method, methods
from trtspec.methods.dflash.net import common_name
from trtspec.methods.draft_formats.base import EMBEDDING, LM_HEAD, MEDUSA, DraftSchema, schemas_for
from trtspec.methods.draft_formats.facts import (
    LEFT_OUT,
    READERS,
    SOFT,
    Carried,
    Facts,
    carried_keys,
    check_keys,
    layer_keys,
)
from trtspec.methods.draft_head import count_layers
from trtspec.methods.eagle3 import default_aux_layers
from trtspec.methods.medusa import LISTED, OF_THE_BASE, SHARED, Heads, find_heads

# The embedding and the LM head of a target, by the names of a draft's copies.
TARGET_NAMES = {EMBEDDING: TARGET_EMBEDDING, LM_HEAD: TARGET_LM_HEAD}
# Tensors that are only needed for training, or are computed.
_LEFT_OUT = re.compile(r"verifier_.*|.*rotary_emb\.inv_freq")
# Tensors that the methods' rules skip and leave to engines.
_OPTIONAL = re.compile(
    r"(.*\.)?t2d|verifier_.*|.*rotary_emb\.inv_freq"
    r"|confidence_(head\.)?proj\.(weight|bias)|(markov_head\.)?(gate|joint)_proj\.(weight|bias)"
)
# Placeholder values that the reader of a decoder's config requires; Medusa heads do not describe the target's layers.
_NO_LAYERS = {
    "architectures": ["LlamaForCausalLM"], "num_attention_heads": 1, "head_dim": 2, "num_hidden_layers": 1,
    "intermediate_size": 1, "max_position_embeddings": 1, "rms_norm_eps": 1e-6,
}  # fmt: skip
_VLLMS_HEADS = 5  # vLLM's default


def dialect_names(facts: Facts, schema: DraftSchema) -> Callable[[str], str]:
    """Return the function that maps a common tensor name to the dialect's name."""
    if schema.names is None:
        return lambda name: _replace_start(name, schema.renames)
    heads = Heads(facts["num_heads"], facts["num_layers"], facts["hidden_size"], facts["vocab_size"], schema.names)
    named = {rule.name: rule.sources[0].name for rule in heads.rules()}
    return lambda name: named.get(name, name)


def _head_tensors(source: Source) -> Iterator[tuple[str, TensorInfo]]:
    heads = find_heads(source)
    for rule in heads.rules():
        if stored := rule.sources[0].name:
            yield LM_HEAD if stored == heads.shared else rule.name, source.tensors[stored]


def _renamed(source: Source) -> Iterator[tuple[str, TensorInfo]]:
    for stored, tensor in source.tensors.items():
        name = _replace_start(stored.removeprefix("eagle_module."), {"midlayer.": "layers.0."})
        if not _LEFT_OUT.fullmatch(name):
            yield common_name(name), tensor


def _replace_start(name: str, starts: Mapping[str, str]) -> str:
    start = next((start for start in starts if name.startswith(start)), None)
    return name if start is None else f"{starts[start]}{name.removeprefix(start)}"


def target_tensor(name: str, target: SourceModel) -> TensorInfo:
    """Return the target's embedding or LM head."""
    rules = [rule for rule in target.rules if rule.target == TARGET_NAMES[name]]
    ((tensor,),) = find_parts(rules, target.source).values()
    return tensor


def have_equal_bits(one: TensorInfo, other: TensorInfo) -> bool:
    """Return whether two tensors are bit-identical."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    return all(left == right for left, right in zip(read_tensor(one), read_tensor(other), strict=True))


def described_target(source: Source) -> ModelConfig:
    """Return a target of the heads' sizes; raise CheckpointError if the vocabulary size is unknown."""
    heads = find_heads(source)
    if not heads.vocab_size:
        raise source.reader.refuse("vocab_size and the heads' vocabulary matrices are missing", "give --target")
    sizes = {"hidden_size": heads.hidden_size, "vocab_size": heads.vocab_size}
    return read_decoder(ConfigReader(_NO_LAYERS | sizes, source.reader.where), "bfloat16")


def check_heads(source: Source, target: SourceModel | None) -> Iterator[Diagnostic]:
    """Yield warnings for heads that predict nothing new or that some readers ignore.

    Raise CheckpointError if config.json has more heads than there are tensors for.
    """
    heads = find_heads(source)
    configured = _configured_heads(source, heads)
    if configured > heads.num_heads:
        raise source.reader.refuse_value(f"has {configured} heads, but there are tensors for {heads.num_heads}")
    if configured < heads.num_heads:
        message = f"config.json has {configured} heads, but there are tensors for {heads.num_heads}"
        yield Diagnostic("model", "heads", message, f"all {heads.num_heads} are written", "warning")
    untrained = [head for head in range(heads.num_heads) if _adds_nothing(source, heads, head)]
    if idle := [head for head in untrained if _has_target_lm_head(source, heads, head, target)]:
        message = f"head {', '.join(map(str, idle))} equals the target's LM head: the blocks are zero"
        hint = "head 0 must predict the token after the next; remove copies of the target's LM head, or train them"
        yield Diagnostic("model", "idle-heads", message, hint, "warning")


def _configured_heads(source: Source, heads: Heads) -> int:
    reader, section = source.reader, source.reader.section("medusa")
    found = section.get("num_medusa_heads", int, heads.num_heads) if section else heads.num_heads
    found = reader.get("num_heads", int, _VLLMS_HEADS) if heads.names is LISTED else found
    return reader.get("medusa_num_heads", int, found)


def _adds_nothing(source: Source, heads: Heads, head: int) -> bool:
    """Return whether all blocks of a head are zero."""
    rules = [rule(head, layer) for layer in range(heads.num_layers) for rule in (heads.weight, heads.bias)]
    blocks = [source.tensors[rule.sources[0].name] for rule in rules if rule.sources[0].name]
    return all(chunk.count(0) == len(chunk) for tensor in blocks for chunk in read_tensor(tensor))


def _has_target_lm_head(source: Source, heads: Heads, head: int, target: SourceModel | None) -> bool:
    """Return whether a head's matrix is known to be the target's LM head."""
    matrix = source.tensors.get(heads.lm_head(head).sources[0].name)
    return heads.shared == "" or bool(target and matrix and have_equal_bits(matrix, target_tensor(LM_HEAD, target)))


@dataclass(frozen=True)
class SourceDraft:
    """A draft of one `kind` (a method's name), read from the dialect `dialect`.

    `layer` is the config of its layers, and `tensors` are by the names that most dialects share. `carried` are keys by
    dialect that do not affect computation. `target_tensors` are the target's tensors in the same files, by their names.
    `warnings` come from the methods' readers.
    """

    kind: str
    dialect: str
    facts: Facts
    layer: dict[str, Any]
    tensors: dict[str, TensorInfo]
    carried: Carried
    where: str
    target_tensors: dict[str, TensorInfo]
    warnings: tuple[Diagnostic, ...]

    @property
    def left_out(self) -> tuple[str, ...]:
        """Return the names of shared target tensors that an earlier conversion omitted."""
        names = self.carried.get("facts", {}).get(LEFT_OUT)
        return tuple(name for name in TARGET_NAMES if isinstance(names, list) and name in names)

    def layers_read(self, num_layers: int) -> tuple[int, ...]:
        """Return the target's layers whose hidden states the draft reads, numbered by their inputs."""
        named: tuple[int, ...] | None = self.facts.get("hidden_layers") or self.facts.get("aux_layers")
        return named or default_aux_layers(num_layers)

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
    schema = schemas_for(kind)[name]
    check_keys(source, kind, schema, drop)
    carried = carried_keys(source, name, schema, drop)
    facts = READERS[kind](source, config)
    facts[SOFT] = target.config.num_layers if target else facts[SOFT] or _soft(carried)
    # by the names that most dialects share; Medusa heads by TensorRT-LLM's names
    tensors = dict(_head_tensors(source) if schema.names else _renamed(source))
    target_tensors = {name: source.tensors[name] for name, why in skipped.items() if why == OF_THE_BASE.reason}
    layer = layer_keys(source, schema)
    if layer.get("num_hidden_layers") and (layers := count_layers(tensors)):
        layer["num_hidden_layers"] = layers  # some heads have the target's number here
    return SourceDraft(kind, name, facts, layer, tensors, carried, str(source.root), target_tensors, warnings)


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
    marks = {name: [_has(source, mark) for mark in schema.marks] for name, schema in schemas_for(kind).items()}
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
