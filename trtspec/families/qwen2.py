# SPDX-License-Identifier: Apache-2.0
"""Qwen2 and Qwen2.5: Llama's layers with biases on queries, keys and values, but not on the attention output."""

from __future__ import annotations

from typing import Any

from trtspec.checkpoints.model_config import ConfigReader, ModelConfig
from trtspec.checkpoints.rules import Family
from trtspec.checkpoints.trtllm import MOST_LAYERS, read_full_layers
from trtspec.families.decoder import decoder_rules, decoder_skips, read_decoder, sliding_window

# The defaults of transformers' Qwen2Config, 5.23.
DEFAULTS = {
    "vocab_size": 151_936, "hidden_size": 4096, "intermediate_size": 22_016, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 32_768, "rms_norm_eps": 1e-06,
    "sliding_window": 4096,
}  # fmt: skip


def read(reader: ConfigReader, dtype: str) -> ModelConfig:
    reader = reader.with_defaults(DEFAULTS)
    # TensorRT-LLM's QWenConfig distinguishes Qwen's generations by this key
    extra = (("qwen_type", "qwen2"),)
    return read_decoder(reader, dtype, attn_bias=True, extra=extra, **switched_window(reader))


def switched_window(reader: ConfigReader) -> dict[str, Any]:
    """Return the ModelConfig fields for the sliding window; empty without `use_sliding_window`.

    The first `max_window_layers` layers are without a window, unless config.json lists the kind of each layer.
    """
    if not reader.get("use_sliding_window", bool, False) or not (window := sliding_window(reader)):
        return {}
    layers = reader.positive("num_hidden_layers", most=MOST_LAYERS)
    first = min(reader.get("max_window_layers", int, 28), layers)
    return {"sliding_window": window, "full_layers": read_full_layers(reader, tuple(range(first)))}


FAMILY = Family(architectures=("Qwen2ForCausalLM",), read=read, rules=decoder_rules, skips=decoder_skips)
