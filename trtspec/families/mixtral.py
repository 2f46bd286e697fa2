# SPDX-License-Identifier: Apache-2.0
"""Mixtral 8x7B and 8x22B: Mistral's attention, and a mixture of experts with a top-k router as MLP."""

from __future__ import annotations

from trtspec.checkpoints.model_config import ConfigReader, ModelConfig
from trtspec.checkpoints.rules import Family
from trtspec.checkpoints.trtllm import MOST_LAYERS
from trtspec.families.decoder import decoder_rules, decoder_skips, read_decoder, sliding_window

MOST_EXPERTS = 32_768  # in all layers together

# The defaults of transformers' MixtralConfig, 5.23.
DEFAULTS = {
    "vocab_size": 32_000, "hidden_size": 4096, "intermediate_size": 14_336, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 131_072, "rms_norm_eps": 1e-05,
    "num_local_experts": 8, "num_experts_per_tok": 2,
}  # fmt: skip


def read(reader: ConfigReader, dtype: str) -> ModelConfig:
    reader = reader.with_defaults(DEFAULTS)
    layers = reader.positive("num_hidden_layers", most=MOST_LAYERS)
    experts = reader.positive("num_local_experts", most=MOST_EXPERTS // layers)
    return read_decoder(
        reader,
        dtype,
        hidden_act="swiglu",
        num_experts=experts,
        experts_per_token=reader.positive("num_experts_per_tok", most=experts),
        base=1_000_000.0,
        sliding_window=sliding_window(reader),
    )


FAMILY = Family(architectures=("MixtralForCausalLM",), read=read, rules=decoder_rules, skips=decoder_skips)
