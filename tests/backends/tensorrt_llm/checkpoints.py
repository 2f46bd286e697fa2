# SPDX-License-Identifier: Apache-2.0
"""Write a recipe and sparse checkpoints with the sizes of its models."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from tests._support.shapes import Shape, make_checkpoint
from tests.backends.contexts import Asked
from trtspec.checkpoints.model_config import ModelConfig

MODEL_TYPES = {
    "Gemma2ForCausalLM": "gemma2",
    "Gemma3ForCausalLM": "gemma3_text",
    "GraniteForCausalLM": "granite",
    "MixtralForCausalLM": "mixtral",
    "Phi3ForCausalLM": "phi3",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
}


@dataclass(frozen=True)
class Checkpoints:
    """Checkpoints below `root`, each created on first use."""

    root: Path
    made: dict[object, Path] = field(default_factory=dict)

    def write(self, asked: Asked, root: Path) -> Path:
        """Write a recipe and its files below `root`; return the recipe."""
        (root / "target").symlink_to(self._made("decoder", asked.target))
        if draft := asked.document.get("speculation", {}).get("draft"):
            layout = "decoder" if asked.draft else asked.document["speculation"]["method"]
            (root / draft["model"]).symlink_to(self._made(layout, asked.draft or asked.target))
        recipe = root / "recipe.yaml"
        recipe.write_text(yaml.safe_dump(asked.document, sort_keys=False))
        return recipe

    def _made(self, layout: str, config: ModelConfig) -> Path:
        key = (layout, config)
        if key not in self.made:
            self.made[key] = self.root / str(len(self.made))
            tokenizer = "stand-in" if layout == "decoder" else None
            make_checkpoint(Shape(layout, "", None, layout, tokenizer, CONFIGS[layout](config), {}), self.made[key])
        return self.made[key]


def _decoder(config: ModelConfig) -> dict[str, Any]:
    """Return config.json of a model."""
    experts = {"num_local_experts": config.num_experts, "num_experts_per_tok": config.experts_per_token}
    return {
        "architectures": [config.architecture],
        "model_type": MODEL_TYPES.get(config.architecture, "llama"),
        "torch_dtype": config.dtype,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_size,
        "max_position_embeddings": config.max_positions,
        "rms_norm_eps": config.norm_epsilon,
        "rope_theta": config.rotary_base,
        "hidden_act": "silu",
        "tie_word_embeddings": config.tied_embeddings,
        **(experts if config.num_experts else {}),
        **_gemma(config),
        **_granite(config),
        **_phi(config),
    }


def _granite(config: ModelConfig) -> dict[str, Any]:
    """Return the additional keys of Granite's config.json."""
    if config.architecture != "GraniteForCausalLM":
        return {}
    return {
        "embedding_multiplier": config.embedding_multiplier,
        "residual_multiplier": config.residual_multiplier,
        "logits_scaling": 1 / config.logit_multiplier,
        "attention_multiplier": config.attention_multiplier / config.head_size**0.5,
    }


def _gemma(config: ModelConfig) -> dict[str, Any]:
    """Return the additional keys of Gemma's config.json."""
    if not config.inner_norms:
        return {}
    kinds = ("full_attention", "sliding_attention")
    scaling = config.rope_scaling
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": int(config.query_scalar),
        "attn_logit_softcapping": config.attention_cap or None,
        "final_logit_softcapping": config.logit_cap or None,
        "sliding_window": config.sliding_window,
        "layer_types": [kinds[config.has_window(layer)] for layer in range(config.num_layers)],
        "rope_local_base_freq": config.local_rotary_base,
        "rope_scaling": {"rope_type": scaling.kind, "factor": scaling.factor} if scaling else None,
    }


def _phi(config: ModelConfig) -> dict[str, Any]:
    """Return the additional keys of Phi's config.json."""
    if config.architecture != "Phi3ForCausalLM":
        return {}
    found: dict[str, Any] = {"partial_rotary_factor": config.rotary_share}
    if scaling := config.rope_scaling:
        factors = {"short_factor": list(scaling.short_factors), "long_factor": list(scaling.long_factors)}
        found["original_max_position_embeddings"] = scaling.original_max_position
        found["rope_scaling"] = {"type": "longrope", "attention_factor": scaling.attention_factor, **factors}
    return found


def _net(config: ModelConfig) -> dict[str, Any]:
    """Return config.json of an EAGLE head for a target: one layer of the same sizes."""
    return _decoder(replace(config, num_layers=1))


def _small(config: ModelConfig) -> dict[str, Any]:
    """Return config.json of Medusa heads or a ReDrafter head for a target."""
    return {
        "torch_dtype": config.dtype,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "medusa_num_layers": 1,
        "exit_dim": 2 * config.hidden_size,
        "num_draft_layers": 1,
        "rnn": False,
    }


CONFIGS = {"decoder": _decoder, "eagle": _net, "medusa": _small, "redrafter": _small}
