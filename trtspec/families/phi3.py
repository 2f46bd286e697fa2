# SPDX-License-Identifier: Apache-2.0
"""Phi-3, Phi-3.5 and Phi-4: Llama's layers with fused projections, partially rotated heads, and LongRoPE."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate

from trtspec.checkpoints.model_config import ConfigReader, ModelConfig
from trtspec.checkpoints.rope import read_rotary
from trtspec.checkpoints.rules import Family, Rule, SourceTensor
from trtspec.families.decoder import decoder_rules, decoder_skips, read_decoder, sliding_window

ALIASES = {"su": "longrope", "yarn": "longrope"}  # former names of LongRoPE

# The defaults of transformers' Phi3Config, 5.23.
DEFAULTS = {
    "vocab_size": 32_064, "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 32,
    "num_attention_heads": 32, "max_position_embeddings": 4096, "original_max_position_embeddings": 4096,
    "rms_norm_eps": 1e-05,
}  # fmt: skip


def read(reader: ConfigReader, dtype: str) -> ModelConfig:
    reader = reader.with_defaults(DEFAULTS)
    positions = reader.positive("max_position_embeddings")
    rotary = read_rotary(reader, positions, kinds=("default", "longrope"), aliases=ALIASES)
    share = rotary.share
    config = read_decoder(
        reader,
        dtype,
        hidden_act="swiglu",
        sliding_window=sliding_window(reader),
        rotary=rotary,
        extra=(("rotary_pct", share),),
    )
    size, scaling = config.rotary_size, config.rope_scaling
    if not 0 < share <= 1 or size < 2 or size % 2:
        message = f"partial_rotary_factor is {share}, which rotates {size} of a head's {config.head_size}"
        raise reader.refuse_value(message)
    if scaling and {len(scaling.short_factors), len(scaling.long_factors)} != {size // 2}:
        message = f"short_factor and long_factor must have {size // 2} numbers each, one for each rotary pair"
        raise reader.refuse_value(message)
    return config


def rules(config: ModelConfig) -> list[Rule]:
    """Return a decoder's conversion rules, with rows of the fused tensors as sources."""
    fused = _fused(config)
    return [
        replace(rule, sources=tuple(fused.get(tensor.name, tensor) for tensor in rule.sources))
        for rule in decoder_rules(config)
    ]


def _fused(config: ModelConfig) -> dict[str, SourceTensor]:
    """Return the rows of the fused tensors that contain each projection, by the projection's usual tensor name."""
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
