# SPDX-License-Identifier: Apache-2.0
"""Mistral 7B, Nemo and Small: Llama's layers without biases; the first release has a sliding window."""

from __future__ import annotations

from trtspec.checkpoints.model_config import ConfigReader, ModelConfig
from trtspec.checkpoints.rules import Family
from trtspec.families.decoder import decoder_rules, decoder_skips, read_decoder, sliding_window

# The defaults of transformers' MistralConfig, 5.23.
DEFAULTS = {
    "vocab_size": 32_000, "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131_072, "rms_norm_eps": 1e-06,
    "sliding_window": 4096,
}  # fmt: skip


def read(reader: ConfigReader, dtype: str) -> ModelConfig:
    reader = reader.with_defaults(DEFAULTS)
    return read_decoder(reader, dtype, sliding_window=sliding_window(reader))


FAMILY = Family(architectures=("MistralForCausalLM",), read=read, rules=decoder_rules, skips=decoder_skips)
