# SPDX-License-Identifier: Apache-2.0
"""Qwen3 (dense): query and key norms per head, an explicit head size, and optional biases."""

from __future__ import annotations

from trtspec.checkpoints.model_config import ConfigReader, ModelConfig
from trtspec.checkpoints.rules import Family
from trtspec.families.decoder import decoder_rules, decoder_skips, read_decoder
from trtspec.families.qwen2 import switched_window

# The defaults of transformers' Qwen3Config, 5.23.
DEFAULTS = {
    "vocab_size": 151_936, "hidden_size": 4096, "intermediate_size": 22_016, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 32, "head_dim": 128, "max_position_embeddings": 32_768,
    "rms_norm_eps": 1e-06, "sliding_window": 4096,
}  # fmt: skip


def read(reader: ConfigReader, dtype: str) -> ModelConfig:
    """Return the config of a Qwen3 model, whose head size is independent of the hidden size."""
    reader = reader.with_defaults(DEFAULTS)
    bias = reader.get("attention_bias", bool, False)
    return read_decoder(
        reader,
        dtype,
        head_size=reader.positive("head_dim", 128),
        attn_bias=bias,
        dense_bias=bias,
        qk_norm=True,
        extra=(("qwen_type", "qwen3"),),
        **switched_window(reader),
    )


FAMILY = Family(architectures=("Qwen3ForCausalLM",), read=read, rules=decoder_rules, skips=decoder_skips)
