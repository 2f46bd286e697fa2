# SPDX-License-Identifier: Apache-2.0
"""Recipes for engines with the sizes of published models, as contexts of `check`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests._support.configs import model_config
from trtspec.backends.context import PlanContext, SelectedBackend
from trtspec.checkpoints.model_config import ModelConfig, RopeScaling
from trtspec.checkpoints.rules import Matched, Rule, SourceTensor, Stage
from trtspec.checkpoints.source import Source
from trtspec.checkpoints.source_model import SourceModel
from trtspec.methods.base import DraftHead, find_method
from trtspec.methods.draft_head import SourceHead
from trtspec.recipe.schema import Recipe

GEMMA: dict[str, Any] = {
    "head_size": 256, "hidden_act": "gelu", "norm_epsilon": 1e-6, "tied_embeddings": True, "inner_norms": True,
    "scaled_embedding": True, "query_scalar": 256.0,
}  # fmt: skip
LONGROPE = RopeScaling(
    "longrope", 32.0, 4096, attention_factor=1.1902380714238083, short_factors=(1.0,) * 48, long_factors=(2.0,) * 48
)
# config.json of the published checkpoints
SHAPES: dict[str, dict[str, Any]] = {
    "llama-3.1-8b": {
        "vocab_size": 128256, "hidden_size": 4096, "num_layers": 32, "num_heads": 32, "num_kv_heads": 8,
        "head_size": 128, "intermediate_size": 14336, "max_positions": 131072,
    },
    "llama-3.3-70b": {
        "vocab_size": 128256, "hidden_size": 8192, "num_layers": 80, "num_heads": 64, "num_kv_heads": 8,
        "head_size": 128, "intermediate_size": 28672, "max_positions": 131072,
    },
    "llama-3.2-1b": {
        "vocab_size": 128256, "hidden_size": 2048, "num_layers": 16, "num_heads": 32, "num_kv_heads": 8,
        "head_size": 64, "intermediate_size": 8192, "max_positions": 131072, "tied_embeddings": True,
    },
    "vicuna-7b": {
        "vocab_size": 32000, "hidden_size": 4096, "num_layers": 32, "num_heads": 32, "num_kv_heads": 32,
        "head_size": 128, "intermediate_size": 11008, "max_positions": 4096,
    },
    "qwen2.5-7b": {
        "architecture": "Qwen2ForCausalLM", "vocab_size": 152064, "hidden_size": 3584, "num_layers": 28,
        "num_heads": 28, "num_kv_heads": 4, "head_size": 128, "intermediate_size": 18944, "max_positions": 32768,
        "attn_bias": True,
    },
    "mixtral-8x7b": {
        "architecture": "MixtralForCausalLM", "vocab_size": 32000, "hidden_size": 4096, "num_layers": 32,
        "num_heads": 32, "num_kv_heads": 8, "head_size": 128, "intermediate_size": 14336, "max_positions": 32768,
        "num_experts": 8, "experts_per_token": 2,
    },
    "gemma-2-9b": GEMMA | {
        "architecture": "Gemma2ForCausalLM", "vocab_size": 256000, "hidden_size": 3584, "num_layers": 42,
        "num_heads": 16, "num_kv_heads": 8, "intermediate_size": 14336, "max_positions": 8192,
        "sliding_window": 4096, "full_layers": tuple(range(1, 42, 2)), "attention_cap": 50.0, "logit_cap": 30.0,
    },
    "gemma-3-4b": GEMMA | {
        "architecture": "Gemma3ForCausalLM", "vocab_size": 262208, "hidden_size": 2560, "num_layers": 34,
        "num_heads": 8, "num_kv_heads": 4, "intermediate_size": 10240, "max_positions": 131072, "qk_norm": True,
        "sliding_window": 1024, "full_layers": tuple(range(5, 34, 6)), "rotary_base": 1e6,
        "local_rotary_base": 1e4, "rope_scaling": RopeScaling("linear", 8.0),
    },
    "granite-3.3-8b": {
        "architecture": "GraniteForCausalLM", "vocab_size": 49159, "hidden_size": 4096, "num_layers": 40,
        "num_heads": 32, "num_kv_heads": 8, "head_size": 128, "intermediate_size": 12800, "max_positions": 131072,
        "rotary_base": 1e7, "norm_epsilon": 1e-5, "tied_embeddings": True, "embedding_multiplier": 12.0,
        "residual_multiplier": 0.22, "logit_multiplier": 0.0625, "attention_multiplier": 0.0078125 * 128**0.5,
    },
    "phi-4": {
        "architecture": "Phi3ForCausalLM", "vocab_size": 100352, "hidden_size": 5120, "num_layers": 40,
        "num_heads": 40, "num_kv_heads": 10, "head_size": 128, "intermediate_size": 17920, "max_positions": 16384,
        "rotary_base": 250000.0, "hidden_act": "swiglu",
    },
    "phi-4-mini": {
        "architecture": "Phi3ForCausalLM", "vocab_size": 200064, "hidden_size": 3072, "num_layers": 32,
        "num_heads": 24, "num_kv_heads": 8, "head_size": 128, "intermediate_size": 8192, "max_positions": 131072,
        "hidden_act": "swiglu", "tied_embeddings": True, "rotary_share": 0.75, "rope_scaling": LONGROPE,
    },
}  # fmt: skip

HEADS = {
    "medusa": "MedusaForCausalLM",
    "eagle": "EagleForCausalLM",
    "redrafter": "ReDrafterForLLaMALM",
    "eagle3": "Eagle3ForCausalLM",
    "dflash": "DFlashDraftModel",
    "dspark": "DSparkDraftModel",
    "p_eagle": "LlamaForCausalLMEagle3",
}
SOURCE = Source(Path("/nowhere"), {"model_type": "llama"}, {})
PLAIN: dict[str, Any] = {"gpu": "h100", "backend": "tensorrt_llm", "max_batch_size": 4, "max_seq_len": 2048}


def shape(name: str, **changes: Any) -> ModelConfig:
    """Return a published model's configuration."""
    return model_config(**SHAPES[name] | changes)


@dataclass(frozen=True)
class Asked:
    """A recipe, and the models that it names; `draft` is None without a draft model."""

    document: dict[str, Any]
    target: ModelConfig
    draft: ModelConfig | None = None


def ask(target: ModelConfig | str = "llama-3.1-8b", draft: ModelConfig | str | None = None, **changes: Any) -> Asked:
    """Return a recipe; `changes` are its dotted keys, with __ for the dots: engine__max_batch_size=8.

    Methods that need a drafter get ./draft.
    """
    document: dict[str, Any] = {
        "schema": "trtspec.recipe/1",
        "name": "case",
        "target": {"model": "./target"},
        "engine": dict(PLAIN),
    }
    if find_method(changes.get("speculation__method", "none")).drafts_with != "nothing":
        changes.setdefault("speculation__draft__model", "./draft")
    for dotted, value in changes.items():
        *sections, key = dotted.split("__")
        section = document
        for name in sections:
            section = section.setdefault(name, {})
        section[key] = value
    return Asked(document, *(shape(model) if isinstance(model, str) else model for model in (target, draft)))


def ask_pair(**changes: Any) -> Asked:
    """Return Llama 3.1 8B with a 1B draft model."""
    return ask(**{"draft": "llama-3.2-1b", "speculation__method": "draft_target", **changes})


def context_of(asked: Asked, version: str = "1.2.1") -> PlanContext:
    """Return a backend's context; methods that draft inside the target get a head with one small matrix."""
    recipe = Recipe.model_validate(asked.document)
    speculation, method = recipe.speculation, find_method(recipe.speculation.method)
    options = method.parse(speculation.options)
    draft_len = speculation.draft_len
    return PlanContext(
        recipe=recipe,
        choice=SelectedBackend(recipe.engine.backend, "a test", version),
        method=method,
        options=options,
        draft_shape=method.draft_shape(options, method.default_draft_len if draft_len is None else draft_len),
        sources={"target": SOURCE} | ({"draft": SOURCE} if speculation.draft else {}),
        target=source_model(asked.target) if asked.target else None,
        draft=source_model(asked.draft) if asked.draft else None,
        head=_head(speculation.method) if method.drafts_with == "head" else None,
    )


def make_context(*models: ModelConfig | str, version: str = "1.2.1", **changes: Any) -> PlanContext:
    """Return the context of `ask`'s recipe."""
    return context_of(ask(*models, **changes), version)


def make_pair(**changes: Any) -> PlanContext:
    """Return the context of `ask_pair`'s recipe."""
    return context_of(ask_pair(**changes))


def source_model(config: ModelConfig) -> SourceModel:
    """Return a source model that has only a configuration."""
    return SourceModel(SOURCE, "a family", "", config, [], Matched({}, {}), None)


def _head(method: str) -> SourceHead:
    head = DraftHead(
        config={"architecture": HEADS.get(method, method)},
        rules=[Rule("head.weight", (SourceTensor("head.weight", (64, 32)),), Stage.LAST)],
    )
    return SourceHead(SOURCE, head, Matched({}, {}))
