# SPDX-License-Identifier: Apache-2.0
"""Rules for batch size, tokens per step, memory and placement that TensorRT-LLM would reject or change silently."""

from __future__ import annotations

from collections.abc import Iterator

from trtspec.backends.context import PlanContext
from trtspec.backends.tensorrt_llm.placement import gpu_loads
from trtspec.backends.tensorrt_llm.rules import sources
from trtspec.backends.tensorrt_llm.specs import EXTERNAL, engine_specs, speculation_mode, uses_draft_logits
from trtspec.core.diagnostics import Diagnostic

MUCH = 16_384  # tokens per step
# the number of GPUs per node in the checkpoint's mapping (checkpoints/trtllm.py)
GPUS_PER_NODE = 8


def check_draft_tokens_per_step(context: PlanContext) -> Iterator[Diagnostic]:
    """Yield an error if max_num_tokens is less than a full batch with drafts; the builder would raise it."""
    target, wanted = engine_specs(context)[0], context.recipe.engine.max_num_tokens
    if wanted and target.mode and wanted < target.least_num_tokens:
        message = f"max_num_tokens {wanted} is less than max_batch_size {target.max_batch_size} times"
        message += f" {target.draft_tokens + 1} tokens to verify; trtllm-build would raise it"
        hint = f"at least {target.least_num_tokens}"
        yield Diagnostic("engine.max_num_tokens", "out-of-range", message, hint, source=sources.BUILDER)


def check_prompt_fits(context: PlanContext) -> Iterator[Diagnostic]:
    """Yield an error if prompts are not split into chunks and the longest one does not fit into a step."""
    for spec in engine_specs(context):
        if spec.longest_prompt < min(spec.max_input_len, spec.max_seq_len - 1):
            message = f"prompts of the {spec.role} are not split into chunks, so {spec.max_num_tokens} tokens per step"
            message += f" are too few for max_input_len {spec.max_input_len}"
            hint = f"engine.max_num_tokens: {spec.max_input_len}, or a smaller max_input_len"
            yield Diagnostic("engine.max_num_tokens", "out-of-range", message, hint, source=sources.MODEL_LIMITS)


def check_chunked_drafts(context: PlanContext) -> Iterator[Diagnostic]:
    """Yield a warning for long texts with external drafts: after a chunked text, the scheduler drops some drafts."""
    target = engine_specs(context)[0]
    if target.mode == EXTERNAL and target.chunks_prompts:
        message = f"texts longer than a step of {target.max_num_tokens} tokens are split into chunks, after which"
        message += " the scheduler drops drafts that reach into another block of the KV cache"
        hint = f"engine.max_num_tokens: {target.max_seq_len}"
        yield Diagnostic("engine.max_num_tokens", "drafts", message, hint, "warning", sources.SCHEDULER)


def check_large_steps(context: PlanContext) -> Iterator[Diagnostic]:
    """Yield a warning for steps of more than 16,384 tokens, against which upstream advises."""
    tokens = max(spec.max_num_tokens for spec in engine_specs(context))
    if tokens > MUCH:
        message = f"{tokens} tokens per step; upstream advises against more than {MUCH}"
        yield Diagnostic("engine.max_num_tokens", "out-of-range", message, None, "warning", sources.NUM_TOKENS)


def check_memory(context: PlanContext) -> Iterator[Diagnostic]:
    """Yield a problem if weights and activations leave too little memory for the KV caches.

    The runtime lowers the maximum text length to the capacity of the cache and reports it only in its log. Requests
    wait until the cache has space for them.
    """
    longest, batch = max(spec.built_seq_len for spec in engine_specs(context)), context.recipe.engine.max_batch_size
    scarce: list[tuple[int, int]] = []  # (tokens in a GPU's caches, GPU id)
    for load in gpu_loads(context) if context.gpu else ():
        if load.fixed >= load.memory:
            message = f"GPU {load.id}: weights and activations take about {_gib(load.fixed)},"
            message += f" but the GPU has {_gib(load.memory)}"
            hint = "divide the model (parallel), store it in FP8, or lower max_num_tokens"
            source = f"{sources.issue(1221)}, {sources.issue(2451)}"
            yield Diagnostic("engine.gpu", "memory", message, hint, source=source)
        elif load.cache_tokens < longest:
            message = f"GPU {load.id}: about {_gib(load.cache_limit)} remain for KV caches, {load.cache_tokens} tokens,"
            message += f" but a text may have {longest} tokens, drafts included"
            hint = "lower engine.max_seq_len, kv_cache: fp8, or more GPUs"
            yield Diagnostic("engine.max_seq_len", "memory", message, hint, source=sources.BATCHING)
        elif load.cache_tokens < batch * longest:
            scarce.append((load.cache_tokens, load.id))
    if scarce:
        tokens, gpu_id = min(scarce)
        message = f"GPU {gpu_id}: KV caches hold {tokens // longest} of max_batch_size {batch} texts of max_seq_len;"
        message += " the others wait"
        yield Diagnostic("engine.max_batch_size", "memory", message, None, "warning", sources.BATCHING)


def _gib(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB"


def check_placement(context: PlanContext) -> Iterator[Diagnostic]:
    """Yield errors unless each engine has as many GPUs as ranks, on one node with GPUs numbered from 0."""
    placement = context.recipe.serving.placement
    for spec in engine_specs(context):
        key, ranks = f"serving.placement.{spec.role}", spec.mapping.ranks
        if placement and len(spec.gpu_ids) != ranks:
            message = f"the {spec.role} is divided over {ranks} GPUs, but {len(spec.gpu_ids)} are listed"
            hint = f"list {ranks}, or change {spec.path}.parallel"
            yield Diagnostic(key, "placement", message, hint, source=sources.EXECUTOR)
        if ranks > GPUS_PER_NODE:
            message = f"the {spec.role} has {ranks} ranks, but engines are served on one node of {GPUS_PER_NODE}"
            yield spec.diagnostic("parallel", "placement", message, source=sources.WORLD)
        elif placement and max(spec.gpu_ids) >= GPUS_PER_NODE:
            message = f"GPU {max(spec.gpu_ids)}: a node's GPUs are numbered 0 to {GPUS_PER_NODE - 1}"
            yield Diagnostic(key, "placement", message, source=sources.WORLD)


def check_draft_placement(context: PlanContext) -> Iterator[Diagnostic]:
    """Yield an error for the placement of a draft if the method does not use a draft model."""
    placement = context.recipe.serving.placement
    if placement and placement.draft and context.draft_config is None:
        message = f"{context.method_name} does not use a draft model"
        yield Diagnostic("serving.placement.draft", "placement", message, "remove draft", source=sources.TRITON)


def check_fast_logits(context: PlanContext) -> Iterator[Diagnostic]:
    """Yield an error for fast_logits without a draft model whose logits are used in verification."""
    if not context.recipe.serving.fast_logits:
        return
    if context.draft_config is None or speculation_mode(context) != EXTERNAL:
        message = f"fast_logits transfers a draft model's logits, but {context.method_name} does not use one"
        yield Diagnostic("serving.fast_logits", "not-supported", message, "remove it", source=sources.DRAFT_README)
    elif not uses_draft_logits(context):
        message = "fast_logits is ignored without use_draft_logits"
        hint = "use_draft_logits: true, or remove fast_logits"
        yield Diagnostic("serving.fast_logits", "not-supported", message, hint, source=sources.DRAFT_README)
