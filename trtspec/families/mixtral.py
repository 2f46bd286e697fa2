# SPDX-License-Identifier: Apache-2.0
"""Mixtral 8x7B and 8x22B: Mistral's attention, and an MLP of experts of which a router picks some for each token."""

from __future__ import annotations

from trtspec.checkpoint.model_config import ConfigReader, ModelConfig
from trtspec.checkpoint.trtllm import MOST_LAYERS
from trtspec.families.base import Family
from trtspec.families.decoder import decoder_rules, decoder_skips, read_decoder, sliding_window

MOST_EXPERTS = 32_768  # in all layers together


def read(reader: ConfigReader, dtype: str) -> ModelConfig:
    """Map a Mixtral config.json."""
    layers = reader.positive("num_hidden_layers", most=MOST_LAYERS)
    experts = reader.positive("num_local_experts", most=MOST_EXPERTS // layers)
    return read_decoder(
        reader,
        dtype,
        hidden_act="swiglu",
        num_experts=experts,
        experts_per_token=reader.positive("num_experts_per_tok", most=experts),
        sliding_window=sliding_window(reader),
    )


FAMILY = Family(architectures=("MixtralForCausalLM",), read=read, rules=decoder_rules, skips=decoder_skips)
