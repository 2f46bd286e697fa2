# SPDX-License-Identifier: Apache-2.0
"""Granite 3 and later (dense): Llama with multipliers for embeddings, attention scores, sublayer outputs and logits."""

from __future__ import annotations

from dataclasses import replace
from math import isfinite, sqrt

from trtspec.checkpoints.model_config import ConfigReader, ModelConfig
from trtspec.checkpoints.rules import Family
from trtspec.families.decoder import decoder_rules, decoder_skips, read_decoder

# The defaults of transformers' GraniteConfig, 5.23.
DEFAULTS = {
    "vocab_size": 32_000, "hidden_size": 4096, "intermediate_size": 11_008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "max_position_embeddings": 2048, "rms_norm_eps": 1e-06,
}  # fmt: skip


def read(reader: ConfigReader, dtype: str) -> ModelConfig:
    reader = reader.with_defaults(DEFAULTS)
    bias = reader.get("attention_bias", bool, False)
    config = read_decoder(
        reader,
        dtype,
        attn_bias=bias,
        dense_bias=bias,
        mlp_bias=reader.get("mlp_bias", bool, False),
        embedding_multiplier=_multiplier(reader, "embedding_multiplier"),
        residual_multiplier=_multiplier(reader, "residual_multiplier"),
        logit_multiplier=1 / _multiplier(reader, "logits_scaling"),
    )
    # transformers' factor replaces 1 / sqrt(head_size), TensorRT-LLM's is relative to it
    factor = _multiplier(reader, "attention_multiplier") * sqrt(config.head_size)
    return replace(config, attention_multiplier=factor)


def _multiplier(reader: ConfigReader, key: str) -> float:
    value = reader.get(key, float, 1.0)
    if not (isfinite(value) and value > 0):
        raise reader.refuse_value(f"{key} is {value}, expected a number above 0")
    return value


FAMILY = Family(architectures=("GraniteForCausalLM",), read=read, rules=decoder_rules, skips=decoder_skips)
