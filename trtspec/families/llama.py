# SPDX-License-Identifier: Apache-2.0
"""Llama 2, 3, 3.1 - 3.3: grouped-query attention, SwiGLU, rotary positions, biases where config.json asks for them."""

from __future__ import annotations

from trtspec.checkpoint.model_config import ConfigReader, ModelConfig
from trtspec.families.base import Family
from trtspec.families.decoder import decoder_rules, decoder_skips, read_decoder


def read(reader: ConfigReader, dtype: str) -> ModelConfig:
    """Map a Llama config.json."""
    bias = reader.get("attention_bias", bool, False)
    return read_decoder(reader, dtype, attn_bias=bias, dense_bias=bias, mlp_bias=reader.get("mlp_bias", bool, False))


FAMILY = Family(architectures=("LlamaForCausalLM",), read=read, rules=decoder_rules, skips=decoder_skips)
