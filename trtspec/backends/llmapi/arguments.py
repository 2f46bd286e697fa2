# SPDX-License-Identifier: Apache-2.0
"""The arguments of TensorRT-LLM's `LLM` in model.yaml, with the field names of its version.

All keys except `triton_config` are arguments of LLM; NVIDIA/TensorRT-LLM:
triton_backend/all_models/llmapi/tensorrt_llm/1/model.yaml@0ebb1536, tensorrt_llm/llmapi/llm_args.py. Names and fields
of speculation come from the version's spec (backends/common/trtllm_versions), and the values of a method's options from
`methods/NAME/llmapi.py`.
"""

from __future__ import annotations

from typing import Any

from trtspec.backends.common.checks import source_architecture
from trtspec.backends.common.trtllm_versions import find_version_spec, minor_version
from trtspec.backends.context import PlanContext, hub_revision
from trtspec.backends.llmapi.methods import find_method
from trtspec.recipe.resolve import resolve_max_input_len, resolve_max_num_tokens
from trtspec.recipe.schema import ScheduledLen

KNOBS = frozenset({"schedule", "acceptance_rate_threshold", "acceptance_window"})
# Default number of steps for the average acceptance rate: a few seconds, so that no single text dominates.
WINDOW_STEPS = 1000
# Versions from here on verify sampled requests against the target's own sample (NVIDIA/TensorRT-LLM pulls 14745 and
# 15775). In earlier ones eagle3 and mtp take the argmax
# (NVIDIA/TensorRT-LLM:tensorrt_llm/_torch/speculative/eagle3.py@001e6700), and draft_target accepts argmax drafts as if
# they were sampled, which changes the distribution (model_drafter.py there, process_static_draft_outputs).
SAMPLES_WITH_DRAFTS = (1, 3)
# Versions from here on honour a request's sampling options; earlier ones always take the argmax (Ataraksia/
# TensorRT-LLM:tensorrt_llm/_torch/pyexecutor/sampler.py@a451bf93, which merges 1.1.0rc6).
SAMPLES = (1, 1)
# Versions from here on combine grammars with all of their drafters, and a guide that fails ends only its request
# (NVIDIA/TensorRT-LLM pulls 6300, 6948 and 9078).
GRAMMARS = (1, 2)
# Without it a draft token is accepted if the target samples the same token, which also keeps the target's distribution.
REJECTION = "use_rejection_sampling"


def target_architecture(context: PlanContext) -> str:
    """Return the target's model class from its config.json, or ""."""
    if context.target_config:
        return context.target_config.architecture
    return source_architecture(context.sources["target"])


def _length_fields(context: PlanContext) -> dict[str, Any]:
    """Return the speculative_config fields for a recipe's schedule and acceptance threshold."""
    speculation, api = context.recipe.speculation, find_version_spec(context.version).api
    fields: dict[str, Any] = {}
    if drafting := drafting_part(context):
        name = schedule_field(drafting)
        fields[name] = drafting[-1].max_batch if name == "max_concurrency" else _counted(drafting, api.counts)
    if speculation.acceptance_rate_threshold is not None and api.threshold:
        rate, window = api.threshold
        fields |= {rate: speculation.acceptance_rate_threshold, window: speculation.acceptance_window or WINDOW_STEPS}
    return fields


def drafting_part(context: PlanContext) -> list[ScheduledLen]:
    """Return the entries of the recipe's schedule that draft at least one token."""
    return [entry for entry in context.recipe.speculation.schedule if entry.draft_len]


def schedule_field(drafting: list[ScheduledLen]) -> str:
    """Return the speculative_config field for a schedule; a single draft length only needs a limit of requests."""
    return "max_concurrency" if len(drafting) == 1 else "draft_len_schedule"


def _counted(drafting: list[ScheduledLen], counts: str) -> dict[int, int]:
    """Return the draft lengths by number of requests; `counts` is the meaning of that number: "up_to" or "from"."""
    if counts == "up_to":  # beyond the last entry nothing is drafted
        return {entry.max_batch: entry.draft_len for entry in drafting}
    firsts = [1, *(entry.max_batch + 1 for entry in drafting)]
    return dict(zip(firsts, [*(entry.draft_len for entry in drafting), 0], strict=True))


def is_greedy_only(context: PlanContext) -> bool:
    """Return whether sampled requests must be rejected, because they would not follow the target's distribution."""
    minor = minor_version(context.version)
    if minor >= SAMPLES_WITH_DRAFTS:
        return False
    method = context.method_name
    return minor < SAMPLES or not (method == "none" or find_method(method).samples)


def speculative_config(context: PlanContext, draft_path: str | None) -> dict[str, Any]:
    """Return the LLM API's speculative_config; empty for the method none.

    `draft_path` is a directory or a hub id. The version must support the recipe's method.
    """
    method = context.method_name
    if method == "none":
        return {}
    api = find_version_spec(context.version).api
    kind = api.methods[method]
    # the field for the draft length; older versions use the number of MTP layers
    length = next(name for name in ("num_nextn_predict_layers", "max_draft_len") if name in kind.required)
    config: dict[str, Any] = {"decoding_type": kind.name, length: context.draft_shape.max_depth}
    if api.draft_key in kind.required:
        config[api.draft_key] = draft_path
    if kind.beside and target_architecture(context) in api.plain:  # its class does not support drafting inside
        config[kind.beside] = False
    return config | _length_fields(context) | {**find_method(method).fields(context)}


def verifies_with_logits(context: PlanContext) -> bool:
    """Return whether the version has a field to verify sampled drafts with the draft's probabilities."""
    kind = find_version_spec(context.version).api.methods[context.method_name]
    return REJECTION in kind.fields


def step_tokens(context: PlanContext) -> int:
    """Return the tokens of a request that a step verifies."""
    return find_method(context.method_name).step_tokens(context.draft_shape.max_tokens)


def model_yaml(context: PlanContext, target_path: str, draft_path: str | None) -> dict[str, Any]:
    """Return the content of model.yaml; paths are hub ids, or directories relative to the served model's directory."""
    recipe, engine, target = context.recipe, context.recipe.engine, context.recipe.target
    fraction = recipe.serving.kv_cache_fraction
    reuses_blocks = find_method(context.method_name).reuses_blocks
    kv_cache: dict[str, Any] = {"free_gpu_memory_fraction": fraction, "enable_block_reuse": reuses_blocks}
    if target.quantization.kv_cache != "none":
        kv_cache["dtype"] = target.quantization.kv_cache
    max_input_len = resolve_max_input_len(engine)
    max_num_tokens = resolve_max_num_tokens(engine, step_tokens(context))
    document: dict[str, Any] = {
        "model": target_path,
        "backend": "pytorch",
        "dtype": target.dtype,
        "tensor_parallel_size": target.parallel.tensor,
        "pipeline_parallel_size": target.parallel.pipeline,
        "max_batch_size": engine.max_batch_size,
        "max_input_len": max_input_len,
        "max_seq_len": engine.max_seq_len,
        "max_num_tokens": max_num_tokens,
        "kv_cache_config": kv_cache,
    }
    if recipe.serving.structured_output:
        document["guided_decoding_backend"] = "xgrammar"
    if max_input_len > max_num_tokens:
        # without it, LLM rejects prompts longer than a step (NVIDIA/TensorRT-LLM:tensorrt_llm/llmapi/llm.py,
        # _check_arguments, in all versions from 1.0 on)
        document["enable_chunked_prefill"] = True
    if revision := hub_revision(target, target_path):
        document["revision"] = revision
    if speculation := speculative_config(context, draft_path):
        document["speculative_config"] = speculation
    # the same as in config.pbtxt, for servers that complete model configurations from this file
    document["triton_config"] = {"max_batch_size": engine.max_batch_size, "decoupled": recipe.serving.streaming}
    return document
