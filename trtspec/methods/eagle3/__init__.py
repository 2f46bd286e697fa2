# SPDX-License-Identifier: Apache-2.0
"""EAGLE-3: a head drafts a chain or a tree from hidden states of several target layers, and then from its own output.

Li et al. 2025, arXiv:2503.01840. Heads of SafeAILab/EAGLE, SpecForge, ModelOpt, DeepSpec and speculators can be read.
The formats have the same tensors. They differ in tensor name prefixes, in the tensors that are omitted because the
target has them, and in the numbering of the target's layers.

TensorRT engines do not support such heads, so their format inside a target's checkpoint is specific to trtspec, with
TensorRT-LLM's module names. In config.json, "eagle3_net_config" describes the layer like EAGLE's "eagle_net_config",
and "eagle3" has the other keys of the head. Tensor names begin with `eagle3.`:

    input_norm.weight, fc_norm.{n}.weight     norms before fc: of all hidden states together, or of each
    fc.weight, fc.bias                        combines the concatenated hidden states
    vocab_embedding.weight                    unless it is the target's
    layers.0.*                                a decoder layer, but attention.qkv reads twice the width: the embedding
                                              after input_layernorm, then the hidden state after hidden_norm
    norm.weight
    lm_head.weight                            unless it is the target's
    d2t, int64                                the target's id of a token minus the draft's id
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from pydantic import Field, ValidationInfo, field_validator

from trtspec.checkpoints.model_config import ConfigReader, ModelConfig
from trtspec.checkpoints.rules import Rule, Skip, SourceTensor, Split, Stage
from trtspec.checkpoints.source import Source
from trtspec.checkpoints.trtllm import MOST_LAYERS, TrtllmCheckpoint, read_config
from trtspec.core.diagnostics import Diagnostic, quote_value
from trtspec.families.decoder import HEAD_DEFAULTS, read_decoder
from trtspec.methods.base import DraftHead, DraftShape, HeadTarget, LossyOptions, Method, VocabularyNames, suggest_for
from trtspec.methods.draft_head import (
    NOT_THIS_KIND,
    check_ids,
    check_layer,
    check_layers,
    check_shift,
    check_sizes,
    count_layers,
    layer_rules,
    stored_section,
)
from trtspec.recipe.schema import refuse

NAME, LAYER_CONFIG = "eagle3", "eagle3_net_config"
LAYER = f"{NAME}.layers.0"
EMBEDDING = "embed_tokens.weight"  # name in a source

_SWITCHES = ("norm_before_fc", "fc_norm", "norm_before_residual", "norm_output",
             "fc_bias", "own_embedding", "own_head", "maps_ids")  # fmt: skip


@dataclass(frozen=True)
class Eagle3HeadConfig:
    """The configuration of an EAGLE-3 head for a target of `target_hidden_size` and `target_vocab_size`.

    `layer` describes the layer and the draft vocabulary. `aux_layers` are the target layers whose hidden states fc
    reads: i is the input of layer i, and the number of layers is the output of the last layer. With `norm_before_fc`
    the hidden states are normalized together, with `fc_norm` separately. The residual is the layer's hidden state,
    after hidden_norm with `norm_before_residual`. The next step reads the layer's output, after the final norm with
    `norm_output`. The other switches are true if the corresponding optional tensors exist.
    """

    layer: ModelConfig
    aux_layers: tuple[int, ...]
    target_hidden_size: int
    target_vocab_size: int
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_before_residual: bool = False
    norm_output: bool = False
    fc_bias: bool = False
    own_embedding: bool = False
    own_head: bool = False
    maps_ids: bool = False

    @property
    def fuse_norms(self) -> tuple[str, ...]:
        """Return the module names of the norms before fc."""
        if self.norm_before_fc:
            return ("input_norm",)
        return tuple(f"fc_norm.{number}" for number in range(len(self.aux_layers) * self.fc_norm))

    def render(self) -> dict[str, Any]:
        """Return the head's section for the target's config.json; the layer's config is a separate section."""
        return {"aux_layers": list(self.aux_layers), **{key: getattr(self, key) for key in _SWITCHES}}


def stored_head(checkpoint: TrtllmCheckpoint, what: str, method: str) -> Eagle3HeadConfig:
    """Return the head in a target's checkpoint; raise CheckpointError, with `what` and `method`, without one."""
    target = checkpoint.config
    section, layer = (stored_section(checkpoint, key, what, method) for key in (NAME, LAYER_CONFIG))
    aux_layers = tuple(section.get("aux_layers", list))
    if not aux_layers or not all(type(each) is int and 0 <= each <= target.num_layers for each in aux_layers):
        raise section.refuse_value(f"aux_layers are {list(aux_layers)}, expected numbers from 0 to {target.num_layers}")
    config = read_config(layer, checkpoint.ranks[-1].keys(), f"{LAYER}.")
    switches = {key: section.get(key, bool) for key in _SWITCHES}
    return Eagle3HeadConfig(config, aux_layers, target.hidden_size, target.vocab_size, **switches)


@dataclass(frozen=True)
class Eagle3Names(VocabularyNames):
    """The tensor names of a source; `layer` is the layer's prefix, which follows the common prefix."""

    layer: str = "layers.0"


def head_rules(head: Eagle3HeadConfig, names: Eagle3Names = Eagle3Names()) -> list[Rule]:
    """Return the conversion rules of a head's tensors; `names` are needed only to read a source."""
    hidden, vocab = head.layer.hidden_size, head.layer.vocab_size

    def rule(name: str, *shape: int, source: str = "", split: Split = Split.WHOLE) -> Rule:
        return Rule(f"{NAME}.{name}", (SourceTensor(f"{names.prefix}{source or name}", shape),), Stage.LAST, split)

    fused = len(head.aux_layers) * head.target_hidden_size
    found = [rule(f"{module}.weight", fused // len(head.fuse_norms)) for module in head.fuse_norms]
    found.append(rule("fc.weight", hidden, fused))
    if head.fc_bias:
        found.append(rule("fc.bias", hidden))
    if head.own_embedding:
        embedding = (head.target_vocab_size, hidden)
        found.append(rule("vocab_embedding.weight", *embedding, source=EMBEDDING, split=Split.EMBEDDING))
    found += _layer_rules(head.layer, f"{names.prefix}{names.layer}")
    found.append(rule("norm.weight", hidden))
    if head.own_head:
        lm_head = rule("lm_head.weight", vocab, hidden, source=names.lm_head, split=Split.VOCABULARY)
        found.append(replace(lm_head, copy=names.lm_head == EMBEDDING))
    if head.maps_ids:
        found.append(replace(rule("d2t", vocab), dtype="I64"))
    return found


def _layer_rules(config: ModelConfig, source: str) -> Iterator[Rule]:
    """Yield the conversion rules of the head's decoder layer, whose attention input has twice the hidden size."""
    hidden_norm = SourceTensor(f"{source}.hidden_norm.weight", (config.hidden_size,))
    yield Rule(f"{LAYER}.hidden_norm.weight", (hidden_norm,), Stage.LAST)
    for rule in layer_rules(config, 0, LAYER, source):
        is_wide = rule.name == f"{LAYER}.attention.qkv.weight"
        wide = (replace(tensor, shape=(tensor.shape[0], 2 * config.hidden_size)) for tensor in rule.sources)
        yield replace(rule, sources=tuple(wide)) if is_wide else rule


AUX_LAYERS = "eagle_aux_hidden_state_layer_ids"
MOST_IDS = 1 << 20  # the largest draft vocabulary; published heads have 32,000 tokens


class Eagle3Options(LossyOptions):
    """Options of the draft: a chain by default, or a dynamic tree of draft_len levels with `top_k` and `nodes`."""

    top_k: int | None = Field(
        default=None, ge=1, le=64, description="Width of the tree: nodes extended per level, and children of each"
    )
    nodes: int | None = Field(
        default=None, ge=1, le=255, validate_default=True, description="Number of the tree's tokens that are verified"
    )

    @field_validator("nodes")
    @classmethod
    def _go_together(cls, nodes: int | None, info: ValidationInfo) -> int | None:
        data = info.data
        if "top_k" in data and (data["top_k"] is None) != (nodes is None):
            raise refuse("bad-value", "a tree requires both top_k and nodes; set both, or none for a chain")
        if data.get("lossy") and nodes is None:
            raise refuse("bad-value", "lossy acceptance requires a tree; set top_k and nodes")
        return nodes


def _draft_shape(options: Eagle3Options, draft_len: int) -> DraftShape:
    if options.top_k is None or options.nodes is None:
        return DraftShape(draft_len, draft_len)
    nodes = min(options.nodes, options.top_k + (draft_len - 1) * options.top_k**2)  # at most all ranked tokens
    return DraftShape(min(draft_len, nodes), nodes)


def read_head(source: Source, base: HeadTarget, options: Eagle3Options) -> DraftHead:
    """Return the single-layer EAGLE-3 head in `source` as a draft head; raise CheckpointError for anything else."""
    names = find_names(source)
    if drafts_in_parallel(source):
        raise source.reader.refuse("describes a net that drafts in parallel", "use method: p_eagle")
    configured = decoder_reader(source.reader).positive("num_hidden_layers", 1)
    if (layers := max(1, count_layers(source.tensors, names.prefix))) > 1:
        message = f"has {layers} layers; only EAGLE-3 heads of one layer are supported"
        raise source.reader.refuse(message, "use a head of one layer")
    head = read_head_config(source, names, base.config)
    prefix = re.escape(names.prefix)
    return DraftHead(
        config={NAME: head.render()},
        rules=head_rules(head, names),
        skips=[
            Skip(f"{prefix}t2d", "needed in training only"),
            Skip(rf"{prefix}{re.escape(names.layer)}\.self_attn\.rotary_emb\.inv_freq", "computed from rope_theta"),
            Skip(r"verifier_.*", "copies of the target's, needed in training only"),
        ],
        models={LAYER_CONFIG: head.layer},
        excluded=(f"{NAME}.*",),
        diagnostics=(
            *check_sizes("the head is", head.target_hidden_size, head.target_vocab_size, base.config),
            *check_aux_layers(head, base.config),
            *check_count(source, base.config),
            *check_layers(configured, layers),
            *_check_width(head, options),
            *_check_defaults(source),
            *check_ids(source, names.prefix, head.layer.vocab_size, head.target_vocab_size),
            *check_layer(head.layer, base.config),
        ),
    )


def find_names(source: Source) -> Eagle3Names:
    """Return a head's tensor names; raise CheckpointError if it is not an EAGLE-3 head."""
    reader, present = source.reader, source.tensors.keys()
    prefix = "eagle_module." if any(name.startswith("eagle_module.") for name in present) else ""
    layer = "midlayer" if any(name.startswith(f"{prefix}midlayer.") for name in present) else "layers.0"
    if f"{prefix}{layer}.hidden_norm.weight" not in present:
        if f"{prefix}fc.weight" in present:
            raise reader.refuse("is an EAGLE-1 or EAGLE-2 head: its layer has no hidden_norm", "use method: eagle")
        raise reader.refuse(f"is not an EAGLE-3 head: {prefix}{layer}.hidden_norm.weight is missing", NOT_THIS_KIND)
    if f"{prefix}lm_head.weight" not in present and decoder_reader(reader).get("tie_word_embeddings", bool, False):
        return Eagle3Names(prefix, EMBEDDING, layer=layer)
    return Eagle3Names(prefix, layer=layer)


def drafts_in_parallel(source: Source) -> bool:
    """Return whether a source is a P-EAGLE net, which has a learned hidden state for mask tokens."""
    has_state = any(name.endswith("mask_hidden") for name in source.tensors)
    return has_state or source.config.get("speculators_model_type") == "peagle"


def decoder_reader(reader: ConfigReader) -> ConfigReader:
    """Return a reader of the layer's config: speculators' transformer_layer_config, or config.json itself."""
    kind = reader.get("speculators_model_type", str, NAME)
    if kind not in (NAME, "peagle"):
        raise reader.refuse(f"speculators_model_type is {kind!r}, expected {NAME!r}", NOT_THIS_KIND)
    return reader.section("transformer_layer_config") or reader


def read_head_config(source: Source, names: Eagle3Names, target: ModelConfig) -> Eagle3HeadConfig:
    """Return a head's configuration, from config.json and from the presence of optional tensors."""
    reader = source.reader
    eagle = reader.section("eagle_config") or ConfigReader({}, reader.where)

    def has(name: str) -> bool:
        return f"{names.prefix}{name}" in source.tensors

    layer = _read_layer(decoder_reader(reader), lambda name: has(f"{names.layer}.{name}"), target.dtype)
    vocab, hidden = layer.vocab_size, reader.positive("target_hidden_size", layer.hidden_size)
    drafted = reader.positive("draft_vocab_size", vocab, most=min(vocab, MOST_IDS))
    head = Eagle3HeadConfig(
        layer=replace(layer, vocab_size=drafted),
        aux_layers=named_aux_layers(source) or default_aux_layers(target.num_layers),
        target_hidden_size=hidden,
        target_vocab_size=vocab,
        norm_before_fc=_read_twice("norm_before_fc", reader, eagle),
        fc_norm=reader.get("fc_norm", bool, False),
        norm_before_residual=reader.get("norm_before_residual", bool, False),
        # defaults to false as in serving engines; SpecForge's trainer defaults to true
        norm_output=reader.get("norm_output", bool, eagle.get("return_hidden_post_norm", bool, False)),
        fc_bias=has("fc.bias"),
        own_embedding=has(EMBEDDING) or layer.hidden_size != hidden,
        own_head=has(names.lm_head) or layer.hidden_size != hidden or drafted < vocab,
        maps_ids=has("d2t") or drafted < vocab,
    )
    if head.norm_before_fc and head.fc_norm:
        raise reader.refuse_value("norm_before_fc and fc_norm are both true, but a head can have only one of them")
    return head


def _read_twice(key: str, reader: ConfigReader, eagle: ConfigReader) -> bool:
    """Return a switch that may be at the top level or in eagle_config; raise CheckpointError if they differ."""
    values = {section.get(key, bool) for section in (reader, eagle) if section.values.get(key) is not None}
    if len(values) > 1:
        raise reader.refuse_value(f"{key} differs between the top level and eagle_config")
    return True in values


def _read_layer(reader: ConfigReader, has: Callable[[str], bool], dtype: str) -> ModelConfig:
    """Return the layer's config with the target's vocabulary; `has` tests for an optional tensor of the layer."""
    flat = reader.with_defaults(HEAD_DEFAULTS).replacing(num_hidden_layers=1, architectures=["LlamaForCausalLMEagle3"])
    return read_decoder(
        flat,
        dtype,
        attn_bias=has("self_attn.q_proj.bias"),
        dense_bias=has("self_attn.o_proj.bias"),
        mlp_bias=has("mlp.gate_proj.bias"),
        qk_norm=has("self_attn.q_norm.weight"),
    )


def default_aux_layers(layers: int) -> tuple[int, ...]:
    """Return EAGLE-3's default auxiliary layers for a target with `layers` layers, numbered by their inputs."""
    return (2, layers // 2, layers - 3)


def named_aux_layers(source: Source) -> tuple[int, ...]:
    """Return the auxiliary layers listed in config.json, numbered by their inputs; empty if none are listed.

    Numbers in eagle_config count outputs, numbers at the top level count inputs. DeepSpec's target_layer_ids count
    outputs, with -1 for the embedding (deepseek-ai/DeepSpec:deepspec/modeling/eagle3/common.py@afdfa7c).
    """
    reader = source.reader
    eagle = reader.section("eagle_config") or ConfigReader({}, reader.where)
    inner, outer = (section.get(AUX_LAYERS, list, []) for section in (eagle, reader))
    outputs = inner or (reader.get("target_layer_ids", list, []) if not outer else [])
    named = outputs or outer
    if len(named) > MOST_LAYERS or not all(type(number) is int for number in named):
        raise reader.refuse_value(f"{AUX_LAYERS} is {quote_value(named)}, expected numbers of layers")
    return tuple(number + bool(outputs) for number in named)


def check_aux_layers(head: Eagle3HeadConfig, target: ModelConfig) -> Iterator[Diagnostic]:
    """Yield an error for auxiliary layers that the target does not have or that do not ascend."""
    in_range = all(0 <= aux_layer <= target.num_layers for aux_layer in head.aux_layers)
    if not in_range or any(aux_layer >= after for aux_layer, after in pairwise(head.aux_layers)):
        aux_layers = ", ".join(map(str, head.aux_layers[:8]))
        message = f"the head reads the inputs of layers {aux_layers}, but the target has {target.num_layers} layers"
        hint = f"{AUX_LAYERS} of its config.json must list valid layers in ascending order"
        yield Diagnostic("model", "aux-layers", message, hint)


def check_count(source: Source, target: ModelConfig) -> Iterator[Diagnostic]:
    """Warn if the auxiliary layers are EAGLE-3's default layers shifted by one."""
    hint = f"{AUX_LAYERS} numbers outputs in eagle_config, but inputs (one more) at the top level"
    usual = default_aux_layers(target.num_layers)
    yield from check_shift(named_aux_layers(source), usual, "the auxiliary layers are EAGLE-3's defaults", hint)


def _check_width(head: Eagle3HeadConfig, options: Eagle3Options) -> Iterator[Diagnostic]:
    drafted = head.layer.vocab_size
    if options.top_k and options.top_k > drafted:
        message = f"top_k is {options.top_k}, but the head drafts only {drafted} different tokens"
        yield Diagnostic("model", "vocabulary", message)


def _check_defaults(source: Source) -> Iterator[Diagnostic]:
    """Warn about keys of config.json for which the defaults of trainer and engines differ.

    Source: vllm-project/vllm:vllm/transformers_utils/configs/speculators/algos.py@v0.32.0.
    """
    if source.config.get("speculators_model_type") == NAME and "norm_before_residual" not in source.config:
        message = "its config.json lacks norm_before_residual: speculators trains with false, vLLM defaults to true"
        hint = "add norm_before_residual: false if it was trained that way"
        yield Diagnostic("model", "norms", message, hint, "warning")


def _variants(options: Eagle3Options) -> Iterator[dict[str, Any]]:
    yield {"top_k": None, "nodes": None}
    yield from ({"top_k": width, "nodes": nodes} for width, nodes in ((2, 6), (4, 12), (4, 24), (8, 32), (10, 59)))


def _is_head(source: Source) -> bool:
    return any(name.endswith(".hidden_norm.weight") for name in source.tensors) and not drafts_in_parallel(source)


METHOD = Method(
    summary="a layer trained for the target drafts from its hidden states, a chain or a tree",
    drafts_with="head",
    has_confidence=True,
    draft_lens=range(1, 17),
    default_draft_len=4,
    options=Eagle3Options,
    draft_shape=_draft_shape,
    read_head=read_head,
    suggest=suggest_for(_is_head, "DRAFT is an EAGLE-3 head: its layer has a hidden_norm"),
    variants=_variants,
    vocabulary_names=find_names,
)
