# SPDX-License-Identifier: Apache-2.0
"""A recipe's arguments of SGLang's Engine, the fields of its ServerArgs.

Names are from sgl-project/sglang:python/sglang/srt/arg_groups/fields/*.py@v0.5.23. The thresholds that would make
acceptance lossy (speculative_accept_threshold_single and _acc) keep their default, 1.0.
"""

from __future__ import annotations

from typing import Any

from trtspec.backends.context import PlanContext, hub_revision, online_format
from trtspec.backends.sglang.versions import BLOCK_VERIFICATION, methods
from trtspec.recipe.resolve import resolve_max_num_tokens

ADAPTIVE = "./1/adaptive.json"  # relative to the served model's directory, like every path of the document
KV_CACHE = {"fp8": "fp8_e4m3"}


def engine_arguments(context: PlanContext, target_path: str, draft_path: str | None) -> dict[str, Any]:
    """Return the arguments of Engine; paths are hub ids, or directories relative to the served model's directory."""
    recipe, engine, target = context.recipe, context.recipe.engine, context.recipe.target
    found: dict[str, Any] = {
        "model_path": target_path,
        # requests and responses contain ids, but a grammar needs SGLang's tokenizer
        # (sgl-project/sglang:python/sglang/srt/constrained/grammar_manager.py@v0.5.23)
        "skip_tokenizer_init": not recipe.serving.structured_output,
        "enable_metrics": True,  # otherwise requests do not report their queue time
        "dtype": target.dtype,
        "tp_size": target.parallel.tensor,
        "pp_size": target.parallel.pipeline,
        "max_running_requests": engine.max_batch_size,
        "context_length": engine.max_seq_len,
        "chunked_prefill_size": resolve_max_num_tokens(engine, context.draft_shape.max_tokens),
        # the fraction of all memory, including weights
        "mem_fraction_static": recipe.serving.kv_cache_fraction,
    }
    if revision := hub_revision(target, target_path):
        found["revision"] = revision
    if online := online_format(context, "target", target):
        found["quantization"] = online
    if target.quantization.kv_cache != "none":
        found["kv_cache_dtype"] = KV_CACHE[target.quantization.kv_cache]
    if recipe.speculation.method != "none":
        found |= speculation(context, draft_path)
    return found


def speculation(context: PlanContext, draft_path: str | None) -> dict[str, Any]:
    """Return the speculation arguments of a recipe with a drafter."""
    recipe, shape, method = context.recipe.speculation, context.draft_shape, methods()[context.method_name]
    found: dict[str, Any] = {
        "speculative_algorithm": method.name,
        "speculative_num_steps": 1 if method.drafts_blocks else shape.max_depth,
        "speculative_eagle_topk": method.tree_width(context.options),
        "speculative_num_draft_tokens": shape.max_tokens + 1,  # with the token that follows the accepted ones
        **method.fields(context.options, shape),
    }
    if recipe.draft and draft_path:
        found["speculative_draft_model_path"] = draft_path
        if revision := hub_revision(recipe.draft, draft_path):
            found["speculative_draft_model_revision"] = revision
        online = online_format(context, "draft", recipe.draft)
        if online != online_format(context, "target", context.recipe.target):  # the default is the target's
            found["speculative_draft_model_quantization"] = online or "unquant"
    if recipe.verify == "block":
        found[BLOCK_VERIFICATION] = True
    if recipe.schedule:
        found |= {"speculative_adaptive": True, "speculative_adaptive_config": ADAPTIVE}
    return found


def adaptive_config(context: PlanContext) -> dict[str, Any]:
    """Return SGLang's adaptive configuration for the recipe's schedule; empty without a schedule.

    It maps a minimum number of requests to a single candidate draft length, so that SGLang adapts nothing else.
    """
    schedule, found, first = context.recipe.speculation.schedule, {}, 1
    for entry in schedule:
        found[str(first)] = {"candidate_steps": [entry.draft_len]}
        first = entry.max_batch + 1
    if schedule and first <= context.recipe.engine.max_batch_size:
        found[str(first)] = {"candidate_steps": [0]}
    return found
