# SPDX-License-Identifier: Apache-2.0
"""Mistral 7B, Nemo, Small: Llama's layers without biases, with a sliding window in the first release."""

from __future__ import annotations

from trtspec.checkpoint.model_config import ConfigReader, ModelConfig
from trtspec.families.base import Family
from trtspec.families.decoder import decoder_rules, decoder_skips, read_decoder, sliding_window


def read(reader: ConfigReader, dtype: str) -> ModelConfig:
    """Map a Mistral config.json."""
    return read_decoder(reader, dtype, sliding_window=sliding_window(reader))


FAMILY = Family(architectures=("MistralForCausalLM",), read=read, rules=decoder_rules, skips=decoder_skips)
