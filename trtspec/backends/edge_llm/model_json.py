# SPDX-License-Identifier: Apache-2.0
"""The start arguments of Edge-LLM's Python API, which the served model reads from model.json.

Every key of `llm` is an argument of LLM (NVIDIA/TensorRT-Edge-LLM:experimental/server/runtime/engine.py@0.11.0).
"""

from __future__ import annotations

from typing import Any

from trtspec.backends.context import PlanContext
from trtspec.backends.edge_llm.arguments import DraftingSizes, drafting_sizes
from trtspec.recipe.resolve import resolve_max_input_len
from trtspec.store.artifact_paths import checkpoint, engine, from_model

PASS_METHODS = ("dflash", "dspark")  # LLM sets their single step itself


def model_json(context: PlanContext) -> dict[str, Any]:
    """Return the document; paths are relative to the served model's directory."""
    sizes, drafting = context.recipe.engine, drafting_sizes(context)
    llm: dict[str, Any] = {
        "model": from_model(checkpoint("target")),
        "max_input_len": resolve_max_input_len(sizes),
        "max_batch_size": sizes.max_batch_size,
        "max_kv_cache_capacity": sizes.max_seq_len,
        # requests can join a running batch only without speculation
        "enable_in_flight_batching": drafting is None,
    }
    return {"engines": from_model(engine("target")), "llm": llm | (_drafting(context, drafting) if drafting else {})}


def _drafting(context: PlanContext, drafting: DraftingSizes) -> dict[str, Any]:
    method = context.recipe.speculation.method
    steps = {} if method in PASS_METHODS else {"draft_step": drafting.steps}
    speculation: dict[str, Any] = {"method": method, "num_speculative_tokens": drafting.tokens}
    if "draft" in context.sources:
        speculation["model"] = from_model(checkpoint("draft"))
    return {
        "draft_top_k": drafting.top_k,
        **steps,
        "verify_tree_size": drafting.verify_size,
        "max_verify_tree_size": drafting.verify_size,
        "max_draft_tree_size": drafting.draft_size,
        "speculative_config": speculation,
    }
