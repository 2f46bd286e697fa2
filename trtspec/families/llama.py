# SPDX-License-Identifier: Apache-2.0
"""Llama 2, 3, 3.1 to 3.3: grouped-query attention, SwiGLU, rotary positions, optional biases."""

from __future__ import annotations

from trtspec.checkpoints.model_config import ConfigReader, ModelConfig
from trtspec.checkpoints.rules import Family
from trtspec.families.decoder import decoder_rules, decoder_skips, read_decoder

# The defaults of transformers' LlamaConfig, 5.23.
DEFAULTS = {
    "vocab_size": 32_000, "hidden_size": 4096, "intermediate_size": 11_008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "max_position_embeddings": 2048, "rms_norm_eps": 1e-06,
}  # fmt: skip


def read(reader: ConfigReader, dtype: str) -> ModelConfig:
    reader = reader.with_defaults(DEFAULTS)
    bias = reader.get("attention_bias", bool, False)
    return read_decoder(reader, dtype, attn_bias=bias, dense_bias=bias, mlp_bias=reader.get("mlp_bias", bool, False))


FAMILY = Family(architectures=("LlamaForCausalLM",), read=read, rules=decoder_rules, skips=decoder_skips)
