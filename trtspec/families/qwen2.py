# SPDX-License-Identifier: Apache-2.0
"""Qwen2 and Qwen2.5: Llama's layers with a bias on queries, keys and values, and none on the attention's output."""

from __future__ import annotations

from trtspec.checkpoint.model_config import ConfigReader, ModelConfig
from trtspec.families.base import Family
from trtspec.families.decoder import decoder_rules, decoder_skips, read_decoder, sliding_window


def read(reader: ConfigReader, dtype: str) -> ModelConfig:
    """Map a Qwen2 config.json."""
    # TensorRT-LLM's QWenConfig tells its generations apart by this key
    extra = (("qwen_type", "qwen2"),)
    return read_decoder(reader, dtype, attn_bias=True, sliding_window=switched_window(reader), extra=extra)


def switched_window(reader: ConfigReader) -> int:
    """Return how far back the layers with a window reach; 0 where `use_sliding_window` leaves it off."""
    return sliding_window(reader) if reader.get("use_sliding_window", bool, False) else 0


FAMILY = Family(architectures=("Qwen2ForCausalLM",), read=read, rules=decoder_rules, skips=decoder_skips)
