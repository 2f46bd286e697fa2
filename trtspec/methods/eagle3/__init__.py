# SPDX-License-Identifier: Apache-2.0
"""EAGLE-3: a head drafts a chain or a tree from hidden states of three target layers, and then from its own output.

Li et al. 2025, arXiv:2503.01840. Heads of SafeAILab/EAGLE, SpecForge, ModelOpt and speculators can be read. Tensor
names have the same meaning in all formats; the formats differ in prefixes, in the tensors that may be missing because
the target has them, and in the numbering of the target's layers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

from pydantic import Field, ValidationInfo, field_validator

from trtspec.checkpoints.model_config import ConfigReader, ModelConfig
from trtspec.checkpoints.rules import Skip
from trtspec.checkpoints.source import Source
from trtspec.checkpoints.trtllm import MOST_LAYERS
from trtspec.core.diagnostics import Diagnostic, quote_value
from trtspec.families.decoder import HEAD_DEFAULTS, read_decoder
from trtspec.methods.base import DraftHead, DraftShape, HeadTarget, LossyOptions, Method, Suggestion
from trtspec.methods.draft_head import NOT_THIS_KIND, check_ids, check_layer, check_layers, check_sizes, count_layers
from trtspec.methods.eagle3.head import EMBEDDING, LAYER_CONFIG, NAME, Eagle3HeadConfig, Eagle3Names, head_rules
from trtspec.recipe.schema import refuse

AUX_LAYERS = "eagle_aux_hidden_state_layer_ids"
MOST_IDS = 1 << 20  # the largest draft vocabulary; published heads have 32,000 tokens


class Eagle3Options(LossyOptions):
    """Without `top_k` and `nodes` the draft is a chain; with them it is a tree of draft_len levels."""

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
    nodes = min(options.nodes, options.top_k + (draft_len - 1) * options.top_k**2)  # all ranked tokens
    return DraftShape(min(draft_len, nodes), nodes)


def read_head(source: Source, base: HeadTarget, options: Eagle3Options) -> DraftHead:
    """Describe the head in `source`; raise CheckpointError if it is not an EAGLE-3 head of one layer."""
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
    """Return the naming scheme of a head's tensors; raise CheckpointError if it is not an EAGLE-3 head."""
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
    """Return whether a source is a P-EAGLE net, which has a hidden state for mask tokens."""
    has_state = any(name.endswith("mask_hidden") for name in source.tensors)
    return has_state or source.config.get("speculators_model_type") == "peagle"


def decoder_reader(reader: ConfigReader) -> ConfigReader:
    """Return the reader of the layer's config: config.json, or speculators' section in it."""
    kind = reader.get("speculators_model_type", str, NAME)
    if kind not in (NAME, "peagle"):
        raise reader.refuse(f"speculators_model_type is {kind!r}, expected {NAME!r}", NOT_THIS_KIND)
    return reader.section("transformer_layer_config") or reader


def read_head_config(source: Source, names: Eagle3Names, target: ModelConfig) -> Eagle3HeadConfig:
    """Return the head's config from config.json and from the presence of optional tensors."""
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
        # the default of serving engines, which differs from the default of SpecForge's trainer
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
    """Return a switch that may be at the top level or in eagle_config; engines differ in the priority of the two."""
    values = {section.get(key, bool) for section in (reader, eagle) if section.values.get(key) is not None}
    if len(values) > 1:
        raise reader.refuse_value(f"{key} differs between the top level and eagle_config")
    return True in values


def _read_layer(reader: ConfigReader, has: Callable[[str], bool], dtype: str) -> ModelConfig:
    """Return the layer's config with the target's vocabulary, and with the biases and norms whose tensors exist."""
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
    """Return EAGLE-3's default auxiliary layers for a target of `layers` layers, numbered by their inputs."""
    return (2, layers // 2, layers - 3)


def named_aux_layers(source: Source) -> tuple[int, ...]:
    """Return the auxiliary layers in config.json, numbered by their inputs; () without such a key.

    A number in eagle_config refers to a layer's output, at the top level to its input. DeepSpec's target_layer_ids are
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
    """Report layers that the target does not have, or that are out of order."""
    in_range = all(0 <= aux_layer <= target.num_layers for aux_layer in head.aux_layers)
    if not in_range or any(aux_layer >= after for aux_layer, after in pairwise(head.aux_layers)):
        aux_layers = ", ".join(map(str, head.aux_layers[:8]))
        message = f"the head reads the inputs of layers {aux_layers}, but the target has {target.num_layers} layers"
        hint = f"{AUX_LAYERS} of its config.json must list valid layers in ascending order"
        yield Diagnostic("model", "aux-layers", message, hint)


def check_count(source: Source, target: ModelConfig) -> Iterator[Diagnostic]:
    """Warn if the layers are EAGLE-3's defaults shifted by one, which suggests the other numbering convention."""
    if (named := named_aux_layers(source)) == default_aux_layers(target.num_layers):
        return
    wrong = {shift: tuple(number + shift for number in default_aux_layers(target.num_layers)) for shift in (-1, 1)}
    if shift := next((shift for shift, numbers in wrong.items() if numbers == named), 0):
        message = f"the auxiliary layers are EAGLE-3's defaults shifted by {shift:+}"
        hint = f"{AUX_LAYERS} numbers outputs in eagle_config, but inputs (one more) at the top level"
        yield Diagnostic("model", "aux-layers", message, hint, "warning")


def _check_width(head: Eagle3HeadConfig, options: Eagle3Options) -> Iterator[Diagnostic]:
    drafted = head.layer.vocab_size
    if options.top_k and options.top_k > drafted:
        message = f"top_k is {options.top_k}, but the head drafts only {drafted} different tokens"
        yield Diagnostic("model", "vocabulary", message)


def _check_defaults(source: Source) -> Iterator[Diagnostic]:
    """Warn if engines may interpret config.json differently from the trainer.

    vllm-project/vllm:vllm/transformers_utils/configs/speculators/algos.py@v0.32.0
    """
    if source.config.get("speculators_model_type") == NAME and "norm_before_residual" not in source.config:
        message = "its config.json lacks norm_before_residual: speculators trains with false, vLLM defaults to true"
        hint = "add norm_before_residual: false if it was trained that way"
        yield Diagnostic("model", "norms", message, hint, "warning")


def _variants(options: Eagle3Options) -> Iterator[dict[str, Any]]:
    yield {"top_k": None, "nodes": None}
    yield from ({"top_k": width, "nodes": nodes} for width, nodes in ((2, 6), (4, 12), (4, 24), (8, 32), (10, 59)))


def _suggest(source: Source) -> Suggestion | None:
    is_head = any(name.endswith(".hidden_norm.weight") for name in source.tensors) and not drafts_in_parallel(source)
    return Suggestion(0, "DRAFT is an EAGLE-3 head: its layer has a hidden_norm") if is_head else None


METHOD = Method(
    summary="a layer trained for the target drafts from its hidden states, a chain or a tree",
    drafts_with="head",
    has_confidence=True,
    draft_lens=range(1, 17),
    default_draft_len=4,
    options=Eagle3Options,
    draft_shape=_draft_shape,
    read_head=read_head,
    suggest=_suggest,
    variants=_variants,
    vocabulary_names=find_names,
)
