# SPDX-License-Identifier: Apache-2.0
"""The arguments of vLLM's AsyncEngineArgs, which Triton's vLLM backend reads from model.json.

Names are from vllm-project/vllm:vllm/engine/arg_utils.py and vllm/config/speculative.py, v0.19.0 to v0.33.0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trtspec.backends.common.memory import plan_source_memory
from trtspec.backends.context import PlanContext, hub_revision, online_format
from trtspec.backends.vllm.check import has_other_vocabulary
from trtspec.backends.vllm.versions import methods, releases
from trtspec.recipe.resolve import resolve_max_num_tokens
from trtspec.recipe.schema import ModelSource, ScheduledLen

LEAST_KV_BYTES = 256 << 20
NODE_GPUS = 8  # larger engines span machines, which requires Ray


def model_json(context: PlanContext, target_path: str, draft_path: str | None) -> dict[str, Any]:
    """Return the content of model.json; paths are hub ids, or directories relative to the served model's directory."""
    recipe, engine, target = context.recipe, context.recipe.engine, context.recipe.target
    document: dict[str, Any] = {
        "model": target_path,
        "dtype": target.dtype,
        "tensor_parallel_size": target.parallel.tensor,
        "pipeline_parallel_size": target.parallel.pipeline,
        "max_num_seqs": engine.max_batch_size,
        "max_model_len": engine.max_seq_len,
        "max_num_batched_tokens": resolve_max_num_tokens(engine, context.draft_shape.max_tokens),
        **_memory(context),
        **_revision(target, target_path),
        **_online(context, "target", target),
    }
    if target.parallel.ranks > NODE_GPUS:
        document["distributed_executor_backend"] = "ray"
    if target.quantization.kv_cache != "none":
        document["kv_cache_dtype"] = target.quantization.kv_cache
    if recipe.speculation.method != "none":
        document["speculative_config"] = speculative_config(context, draft_path)
    return document


def speculative_config(context: PlanContext, draft_path: str | None) -> dict[str, Any]:
    """Return vLLM's speculative_config; the method is not "none". Trees are drafted as chains."""
    speculation, method = context.recipe.speculation, methods()[context.method_name]
    config: dict[str, Any] = {
        "method": method.name,
        "num_speculative_tokens": context.draft_shape.max_depth,
        **method.fields(context.options),
        **_feature_fields(context),
    }
    if method.in_parallel:
        config["parallel_drafting"] = True
    if (draft := speculation.draft) and draft_path:
        config |= {"model": draft_path, **_revision(draft, draft_path)}
        if context.method.drafts_with == "model":
            tensor = context.recipe.target.parallel.tensor  # vLLM divides a draft like its target
            config |= {"draft_tensor_parallel_size": tensor, **_online(context, "draft", draft)}
            config |= {"use_heterogeneous_vocab": True} if has_other_vocabulary(context) else {}
    return config


def _feature_fields(context: PlanContext) -> dict[str, Any]:
    speculation, most = context.recipe.speculation, context.recipe.engine.max_batch_size
    fields: dict[str, Any] = {}
    if speculation.schedule:
        fields["num_speculative_tokens_per_batch_size"] = _ranges(speculation.schedule, most)
    if speculation.verify == "block":
        # block verification accepts more tokens only if the draft is sampled from its own distribution
        fields |= {"rejection_sample_method": "block", "draft_sample_method": "probabilistic"}
    return fields


def _ranges(schedule: Sequence[ScheduledLen], most: int) -> list[list[int]]:
    """Return [first, last, draft tokens] for each range of batch sizes up to `most`.

    Batch sizes beyond the schedule draft 0 tokens. Their range is explicit, because vLLM would otherwise extend the
    schedule's last entry.
    """
    firsts = [1, *(each.max_batch + 1 for each in schedule)]
    found = [[first, each.max_batch, each.draft_len] for first, each in zip(firsts, schedule, strict=False)]
    return [*found, [firsts[-1], most, 0]] if firsts[-1] <= most else found


def _memory(context: PlanContext) -> dict[str, Any]:
    """Return vLLM's memory limit; on a CPU, whose memory is shared, it is the KV cache of full batches.

    The limit on a CPU is four times the target's KV cache in 16 bits: float32 doubles it, and a draft needs at most the
    same again.
    """
    if context.recipe.engine.device == "cpu":
        needed = sum(4 * each.kv_cache_bytes for each in plan_source_memory(context))
        return {"kv_cache_memory_bytes": max(needed, LEAST_KV_BYTES), "enforce_eager": True}
    # the fraction of all memory, including weights and activations: vLLM cannot limit a fraction of the free memory
    return {"gpu_memory_utilization": context.recipe.serving.kv_cache_fraction}


def _revision(asked: ModelSource, path: str) -> dict[str, str]:
    return {"revision": revision} if (revision := hub_revision(asked, path)) else {}


def _online(context: PlanContext, role: str, asked: ModelSource) -> dict[str, str]:
    """Return vLLM's option for the format to which it quantizes on load; empty for none."""
    wanted = online_format(context, role, asked)
    return {"quantization": releases()[context.version].online[wanted]} if wanted else {}
