# SPDX-License-Identifier: Apache-2.0
"""The arguments of TensorRT-LLM's `LLM` in model.yaml.

Every key except `triton_config` is an argument of LLM; NVIDIA/TensorRT-LLM:
triton_backend/all_models/llmapi/tensorrt_llm/1/model.yaml@0ebb1536, tensorrt_llm/llmapi/llm_args.py.
"""

from __future__ import annotations

from typing import Any

from trtspec.backends.context import PlanContext
from trtspec.backends.llmapi.speculative import speculative_config, step_tokens
from trtspec.recipe.resolve import resolve_max_input_len, resolve_max_num_tokens
from trtspec.recipe.schema import is_directory


def model_yaml(context: PlanContext, target_path: str, draft_path: str | None) -> dict[str, Any]:
    """Return the document; paths are directories relative to the served model's, or hub ids."""
    recipe, engine, target = context.recipe, context.recipe.engine, context.recipe.target
    kv_cache: dict[str, Any] = {
        "free_gpu_memory_fraction": recipe.serving.kv_cache_fraction,
        "enable_block_reuse": True,
    }
    if target.quantization.kv_cache != "none":
        kv_cache["dtype"] = target.quantization.kv_cache
    document: dict[str, Any] = {
        "model": target_path,
        "backend": "pytorch",
        "dtype": target.dtype,
        "tensor_parallel_size": target.parallel.tensor,
        "pipeline_parallel_size": target.parallel.pipeline,
        "max_batch_size": engine.max_batch_size,
        "max_input_len": resolve_max_input_len(engine),
        "max_seq_len": engine.max_seq_len,
        "max_num_tokens": resolve_max_num_tokens(engine, step_tokens(context)),
        "kv_cache_config": kv_cache,
    }
    if target.revision and not is_directory(target_path):
        document["revision"] = target.revision
    if speculation := speculative_config(context, draft_path):
        document["speculative_config"] = speculation
    # the same as in config.pbtxt, for servers that complete model configurations from here
    return document | {
        "triton_config": {"max_batch_size": engine.max_batch_size, "decoupled": recipe.serving.streaming}
    }
