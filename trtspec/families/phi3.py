# SPDX-License-Identifier: Apache-2.0
"""Phi-3, Phi-3.5 and Phi-4: Llama's layers with fused projections, heads rotated in part, LongRoPE for long texts."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

from trtspec.checkpoint.model_config import ConfigReader, ModelConfig, RopeScaling
from trtspec.checkpoint.rope import read_rope_scaling
from trtspec.checkpoint.rules import Rule, SourceTensor
from trtspec.families.base import Family
from trtspec.families.decoder import decoder_rules, decoder_skips, read_decoder, sliding_window

LONGROPE = ("longrope", "su", "yarn")  # its names through the years


def read(reader: ConfigReader, dtype: str) -> ModelConfig:
    """Map a Phi-3 config.json."""
    rope = reader.section("rope_parameters")
    share = (rope or reader).get("partial_rotary_factor", float, reader.get("partial_rotary_factor", float, 1.0))
    config = read_decoder(
        reader,
        dtype,
        hidden_act="swiglu",
        sliding_window=sliding_window(reader),
        rotary_share=share,
        rope_scaling=_scaling(reader, rope or reader.section("rope_scaling")),
        extra=(("rotary_pct", share),),
    )
    size, scaling = config.rotary_size, config.rope_scaling
    if not 0 < share <= 1 or size < 2 or size % 2:
        raise reader.refuse(f"partial_rotary_factor is {share}, which rotates {size} of a head's {config.head_size}")
    if scaling and {len(scaling.short_factors), len(scaling.long_factors)} != {size // 2}:
        raise reader.refuse(f"short_factor and long_factor are not {size // 2} numbers each, one for each rotary pair")
    return config


def _scaling(reader: ConfigReader, section: ConfigReader | None) -> RopeScaling | None:
    """Return the scaling, whose original length stands beside it rather than in it."""
    kind = section and (section.values.get("rope_type") or section.values.get("type") or "default")
    if section is None or kind == "default":
        return None
    if kind not in LONGROPE:
        raise section.refuse(f"rope type {kind!r} is not supported; supported: default, longrope")
    beside = reader.values.get("original_max_position_embeddings")
    values = (
        section.values | {"rope_type": "longrope"} | ({"original_max_position_embeddings": beside} if beside else {})
    )
    return read_rope_scaling(ConfigReader(values, section.where), reader.positive("max_position_embeddings"))


def rules(config: ModelConfig) -> list[Rule]:
    """List every tensor of the converted checkpoint: a decoder's, from rows of fewer source tensors."""
    fused = _fused(config)
    return [
        replace(rule, sources=tuple(fused.get(tensor.name, tensor) for tensor in rule.sources))
        for rule in decoder_rules(config)
    ]


def _fused(config: ModelConfig) -> dict[str, SourceTensor]:
    """Return the source tensor, rows of a fused one, for each projection by its usual name."""
    heads, kv_heads, size = config.num_heads, config.num_kv_heads, config.head_size
    found = {}
    for layer in range(config.num_layers):
        prefix = f"model.layers.{layer}"
        qkv = {
            "q_proj": (heads * size, heads),
            "k_proj": (kv_heads * size, kv_heads),
            "v_proj": (kv_heads * size, kv_heads),
        }
        mlp = {"gate_proj": (config.intermediate_size, 0), "up_proj": (config.intermediate_size, 0)}
        for block, stored, parts in (("self_attn", "qkv_proj", qkv), ("mlp", "gate_up_proj", mlp)):
            first_rows = accumulate((rows for rows, _ in parts.values()), initial=0)
            total = sum(rows for rows, _ in parts.values())
            for (name, (rows, count)), first in zip(parts.items(), first_rows, strict=False):
                source, shape = f"{prefix}.{block}.{stored}.weight", (rows, config.hidden_size)
                found[f"{prefix}.{block}.{name}.weight"] = SourceTensor(
                    source, shape, count, first_row=first, stored_rows=total
                )
    return found


FAMILY = Family(architectures=("Phi3ForCausalLM",), read=read, rules=rules, skips=decoder_skips)
