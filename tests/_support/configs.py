# SPDX-License-Identifier: Apache-2.0
"""Configurations of small models, for tests that do not need weights."""

from __future__ import annotations

from typing import Any

from trtspec.checkpoints.model_config import ModelConfig


def model_config(**fields: Any) -> ModelConfig:
    """Return a small dense Llama with `fields` replaced."""
    common: dict[str, Any] = {
        "architecture": "LlamaForCausalLM",
        "dtype": "bfloat16",
        "vocab_size": 50,
        "hidden_size": 12,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_size": 2,
        "intermediate_size": 8,
        "hidden_act": "silu",
        "norm_epsilon": 1e-5,
        "max_positions": 128,
        "rotary_base": 10000.0,
        "rope_scaling": None,
        "attn_bias": False,
        "mlp_bias": False,
        "tied_embeddings": False,
    }
    return ModelConfig(**common | fields)
