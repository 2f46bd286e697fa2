# SPDX-License-Identifier: Apache-2.0
"""Qwen3 (dense): queries and keys are normed head by head, the head size is given, biases only where asked for."""

from __future__ import annotations

from trtspec.checkpoint.model_config import ConfigReader, ModelConfig
from trtspec.families.base import Family
from trtspec.families.decoder import decoder_rules, decoder_skips, read_decoder
from trtspec.families.qwen2 import switched_window


def read(reader: ConfigReader, dtype: str) -> ModelConfig:
    """Map a Qwen3 config.json; its head size does not follow from the hidden size."""
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
