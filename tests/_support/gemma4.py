# SPDX-License-Identifier: Apache-2.0
"""config.json of a small Gemma 4 and of its assistant, with the keys of the published ones."""

from __future__ import annotations

from typing import Any

_TEXT: dict[str, Any] = {
    "model_type": "gemma4_text", "vocab_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "num_global_key_value_heads": 1, "global_head_dim": 32, "attention_k_eq_v": True, "sliding_window": 64,
    "max_position_embeddings": 4096, "rms_norm_eps": 1e-6, "hidden_activation": "gelu_pytorch_tanh",
    "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0, "tie_word_embeddings": True,
}  # fmt: skip
TARGET: dict[str, Any] = {
    "architectures": ["Gemma4ForConditionalGeneration"], "model_type": "gemma4", "dtype": "bfloat16",
    "tie_word_embeddings": True, "vision_config": None, "audio_config": None, "eos_token_id": 1,
    "text_config": _TEXT | {
        "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 6, "num_kv_shared_layers": 0,
        "layer_types": [*["sliding_attention"] * 5, "full_attention"],
    },
}  # fmt: skip
ASSISTANT: dict[str, Any] = {
    "architectures": ["Gemma4AssistantForCausalLM"], "model_type": "gemma4_assistant", "dtype": "bfloat16",
    "backbone_hidden_size": 128, "use_ordered_embeddings": False, "num_centroids": 64,
    "centroid_intermediate_top_k": 4, "tie_word_embeddings": True, "eos_token_id": 1,
    "text_config": _TEXT | {
        "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_kv_shared_layers": 4,
        "layer_types": [*["sliding_attention"] * 3, "full_attention"],
    },
}  # fmt: skip


def text_target(**changes: Any) -> dict[str, Any]:
    """Return the config.json of the target's text model alone."""
    plain = {"architectures": ["Gemma4ForCausalLM"], "dtype": "bfloat16", "eos_token_id": 1}
    return TARGET["text_config"] | plain | changes


def changed(config: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """Return a config.json with other values; keys that text_config has are changed there."""
    text = config["text_config"]
    inner = {key: value for key, value in changes.items() if key in text and key not in config}
    outer = {key: value for key, value in changes.items() if key not in inner}
    return config | outer | {"text_config": text | inner}
