# SPDX-License-Identifier: Apache-2.0
"""Gemma 2: norms of 1 + w, also after attention and MLP; sliding windows in every other layer; soft-capped scores."""

from __future__ import annotations

from dataclasses import replace
from math import isfinite
from typing import Any

from trtspec.checkpoints.model_config import ConfigReader, ModelConfig
from trtspec.checkpoints.rules import Family, Rule
from trtspec.checkpoints.trtllm import MOST_LAYERS, read_full_layers
from trtspec.families.decoder import decoder_rules, decoder_skips, read_decoder, sliding_window

LOGIT_CAP = "final_logit_softcapping"
NORMS = ("layernorm.weight", "ln_f.weight")

# The defaults of transformers' Gemma2Config, 5.23.
DEFAULTS = {
    "vocab_size": 256_000, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 8192,
    "rms_norm_eps": 1e-06, "sliding_window": 4096,
}  # fmt: skip


def read(reader: ConfigReader, dtype: str) -> ModelConfig:
    reader = reader.with_defaults(DEFAULTS)
    caps = {"attention_cap": cap(reader, "attn_logit_softcapping", 50.0), "logit_cap": cap(reader, LOGIT_CAP, 30.0)}
    return read_gemma(reader, dtype, pattern=2, **caps)


def read_gemma(reader: ConfigReader, dtype: str, pattern: int, **differences: Any) -> ModelConfig:
    """Return the config of a Gemma 2 or 3 model; by default, every `pattern`-th layer is without a sliding window."""
    if reader.get("use_bidirectional_attention", bool, False):
        raise reader.unsupported("use_bidirectional_attention is not supported: text is generated from left to right")
    bias = reader.get("attention_bias", bool, False)
    every = tuple(range(pattern - 1, reader.positive("num_hidden_layers", most=MOST_LAYERS), pattern))
    full = read_full_layers(reader, every)
    return read_decoder(
        reader,
        dtype,
        activation=("hidden_activation", "gelu_pytorch_tanh"),
        hidden_act="gelu",  # TensorRT-LLM's name for this activation
        head_size=reader.positive("head_dim", 256),
        attn_bias=bias,
        dense_bias=bias,
        tied_embeddings=reader.get("tie_word_embeddings", bool, True),
        sliding_window=sliding_window(reader),
        full_layers=full,
        inner_norms=True,
        scaled_embedding=True,
        query_scalar=float(reader.positive("query_pre_attn_scalar", 256)),
        # TensorRT-LLM locates Gemma 3's layers without a window with this key
        extra=(("_sliding_window_pattern", full[0] + 1 if full else MOST_LAYERS),),
        **differences,
    )


def cap(reader: ConfigReader, key: str, default: float = 0.0) -> float:
    """Return the soft cap of attention scores or logits; 0 for null, which means no cap."""
    value = reader.get(key, float, 0.0) if key in reader.values else default
    if not (isfinite(value) and value >= 0):
        raise reader.refuse_value(f"{key} is {value}, expected 0 or more")
    return value


def rules(config: ModelConfig) -> list[Rule]:
    """Return the conversion rules of all tensors; they add 1 to norm weights, because engines use w, not 1 + w."""
    return [replace(rule, plus=1.0) if rule.target.endswith(NORMS) else rule for rule in decoder_rules(config)]


FAMILY = Family(architectures=("Gemma2ForCausalLM",), read=read, rules=rules, skips=decoder_skips)
