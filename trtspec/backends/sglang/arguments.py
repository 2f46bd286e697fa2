# SPDX-License-Identifier: Apache-2.0
"""Map a recipe to arguments of SGLang's Engine, the fields of its ServerArgs, and to its adaptive drafting file.

Names: sgl-project/sglang:python/sglang/srt/arg_groups/fields/*.py@v0.5.23. The thresholds that would make acceptance
lossy (speculative_accept_threshold_single and _acc, 1.0) are never set.
"""

from __future__ import annotations

from typing import Any

from trtspec.backends.context import PlanContext
from trtspec.backends.sglang.versions import ALGORITHMS
from trtspec.checkpoints.prequantized import source_format
from trtspec.methods.eagle import EagleOptions
from trtspec.methods.eagle3 import Eagle3Options
from trtspec.methods.ngram import NgramOptions
from trtspec.recipe.resolve import resolve_max_num_tokens
from trtspec.recipe.schema import ModelSource, is_directory

ADAPTIVE = "./1/adaptive.json"  # relative to the served model's directory, like every path of the document
KV_CACHE = {"fp8": "fp8_e4m3"}


def engine_arguments(context: PlanContext, target_path: str, draft_path: str | None) -> dict[str, Any]:
    """Return the arguments; paths are directories relative to the served model's, or hub ids."""
    recipe, engine, target = context.recipe, context.recipe.engine, context.recipe.target
    found: dict[str, Any] = {
        "model_path": target_path,
        "skip_tokenizer_init": True,  # requests and responses contain ids
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
    if target.revision and not is_directory(target_path):
        found["revision"] = target.revision
    if online := _online(context, "target", target):
        found["quantization"] = online
    if target.quantization.kv_cache != "none":
        found["kv_cache_dtype"] = KV_CACHE[target.quantization.kv_cache]
    if recipe.speculation.method != "none":
        found |= speculation(context, draft_path)
    return found


def speculation(context: PlanContext, draft_path: str | None) -> dict[str, Any]:
    """Return the speculation arguments of a recipe with a drafter."""
    recipe = context.recipe.speculation
    found = {"speculative_algorithm": ALGORITHMS[recipe.method], **_lengths(context), **_option_fields(context)}
    if recipe.draft and draft_path:
        found |= _draft(context, recipe.draft, draft_path)
    if recipe.verify == "block":
        found["speculative_use_block_verification"] = True
    if recipe.schedule:
        found |= {"speculative_adaptive": True, "speculative_adaptive_config": ADAPTIVE}
    return found


def adaptive_config(context: PlanContext) -> dict[str, Any]:
    """Return SGLang's document for the recipe's schedule: by minimal number of requests, the single draft length.

    Empty without a schedule. With a single candidate, SGLang adapts nothing else.
    """
    schedule, found, first = context.recipe.speculation.schedule, {}, 1
    for entry in schedule:
        found[str(first)] = {"candidate_steps": [entry.draft_len]}
        first = entry.max_batch + 1
    if schedule and first <= context.recipe.engine.max_batch_size:
        found[str(first)] = {"candidate_steps": [0]}
    return found


def _lengths(context: PlanContext) -> dict[str, int]:
    """Return the draft lengths; a step verifies one more token, which follows the accepted ones."""
    shape, method = context.draft_shape, context.method_name
    return {
        # a block drafter drafts in one step
        "speculative_num_steps": 1 if method in ("dflash", "dspark") else shape.max_depth,
        "speculative_eagle_topk": tree_width(context),
        "speculative_num_draft_tokens": shape.max_tokens + 1,
    }


def tree_width(context: PlanContext) -> int:
    """Return the number of continuations of each draft token: 1 for a chain."""
    options = context.options
    return options.top_k or 1 if isinstance(options, EagleOptions | Eagle3Options) else 1


def _option_fields(context: PlanContext) -> dict[str, Any]:
    options, depth = context.options, context.draft_shape.max_depth
    if isinstance(options, NgramOptions):
        # with a breadth of 1 its tree is a chain; its paths contain the match and the draft tokens
        breadth = {f"speculative_ngram_{end}_bfs_breadth": 1 for end in ("min", "max")}
        return {**breadth, "speculative_ngram_max_trie_depth": options.max_match + depth}
    if context.method_name == "dspark":
        return {
            "speculative_dspark_block_size": depth
        }  # only draft tokens, while DFLASH also counts the token before them
    return {}


def _draft(context: PlanContext, draft: ModelSource, path: str) -> dict[str, str]:
    found = {"speculative_draft_model_path": path}
    if draft.revision and not is_directory(path):
        found["speculative_draft_model_revision"] = draft.revision
    online, targets = _online(context, "draft", draft), _online(context, "target", context.recipe.target)
    if online != targets:  # the default is the target's
        found["speculative_draft_model_quantization"] = online or "unquant"
    return found


def _online(context: PlanContext, role: str, asked: ModelSource) -> str:
    """Return the format to which SGLang quantizes on load; "" for a source that is already quantized."""
    wanted = asked.quantization.weights
    return "" if wanted == "none" or source_format(context.sources[role]).weights != "none" else wanted
