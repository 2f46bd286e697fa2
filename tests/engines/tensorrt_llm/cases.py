# SPDX-License-Identifier: Apache-2.0
"""Recipes for engines with the sizes of published models, as `check` would hand them to the engine."""

from __future__ import annotations

from typing import Any

from tests.configs import model_config
from trtspec.checkpoint.model_config import ModelConfig
from trtspec.checkpoint.rules import Part, Rule, Stage
from trtspec.engines.base import Case, Storage
from trtspec.methods.base import DraftPart, find_method
from trtspec.recipe.schema import ModelSource, Recipe

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
}  # fmt: skip

PARTS = {
    "medusa": "MedusaForCausalLM",
    "eagle": "EagleForCausalLM",
    "redrafter": "ReDrafterForLLaMALM",
    "eagle3": "Eagle3ForCausalLM",
}
PLAIN: dict[str, Any] = {"gpu": "h100", "backend": "tensorrt_llm", "max_batch_size": 4, "max_seq_len": 2048}


def shape(name: str, **changes: Any) -> ModelConfig:
    """Return a published model's description."""
    return model_config(**SHAPES[name] | changes)


def make_case(
    target: ModelConfig | str = "llama-3.1-8b",
    draft: ModelConfig | str | None = None,
    version: str = "1.2.1",
    **changes: Any,
) -> Case:
    """Return a case; `changes` are the recipe's dotted keys, with __ for the dots: engine__max_batch_size=8.

    Methods that draft from inside get a part of one small matrix.
    """
    document: dict[str, Any] = {
        "schema": "trtspec.recipe/1",
        "name": "case",
        "target": {"model": "./target"},
        "engine": dict(PLAIN),
    }
    method_name = changes.get("speculation__method", "none")
    method = find_method(method_name)
    if method.drafts_with != "nothing":
        changes.setdefault("speculation__draft__model", "./draft")
    for dotted, value in changes.items():
        *sections, key = dotted.split("__")
        section = document
        for name in sections:
            section = section.setdefault(name, {})
        section[key] = value
    recipe = Recipe.model_validate(document)
    options = method.parse(recipe.speculation.options)
    draft_len = recipe.speculation.draft_len
    draft_config = shape(draft) if isinstance(draft, str) else draft
    return Case(
        recipe=recipe,
        version=version,
        method=method,
        options=options,
        extent=method.extent(options, method.default_draft_len if draft_len is None else draft_len),
        target=shape(target) if isinstance(target, str) else target,
        target_storage=_storage(recipe.target),
        draft=draft_config,
        draft_storage=_storage(recipe.speculation.draft) if draft_config and recipe.speculation.draft else Storage(),
        part=_part(method_name) if method.drafts_with == "part" else None,
    )


def make_pair(**changes: Any) -> Case:
    """Return Llama 3.1 8B with a draft model of 1B."""
    return make_case(**{"draft": "llama-3.2-1b", "speculation__method": "draft_target", **changes})


def _storage(model: ModelSource) -> Storage:
    return Storage(model.quantization.weights, model.quantization.kv_cache)


def _part(method: str) -> DraftPart:
    return DraftPart(
        config={"architecture": PARTS[method]},
        rules=[Rule("part.weight", (Part("part.weight", (64, 32)),), Stage.LAST)],
    )
