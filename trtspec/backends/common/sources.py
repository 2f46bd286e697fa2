# SPDX-License-Identifier: Apache-2.0
"""What backends share that run Hugging Face checkpoints as they are: placement, and memory on each GPU."""

from __future__ import annotations

from collections.abc import Iterable

from trtspec.backends.common.memory import MemoryPlan
from trtspec.backends.context import PlanContext
from trtspec.checkpoint.model_config import ModelConfig
from trtspec.diagnostics import Diagnostic
from trtspec.gpus import GPUS
from trtspec.quant.quant_config import QuantFormat, source_format
from trtspec.recipe.resolve import num_tokens_of
from trtspec.recipe.schema import ModelSource

ITEM_BYTES = 2  # of bfloat16 and float16, in which everything is kept that is not quantized


def models_of(context: PlanContext) -> Iterable[tuple[str, str, ModelSource]]:
    """Yield (role, recipe path, what the recipe says) of each model that the recipe names."""
    yield "target", "target", context.recipe.target
    if context.recipe.speculation.draft:
        yield "draft", "speculation.draft", context.recipe.speculation.draft


def check_placement(context: PlanContext, *, maps_vocabularies: bool = False) -> Iterable[Diagnostic]:
    """Yield what keeps draft and target from sharing their GPUs: engines load both in one place, divided alike.

    With `maps_vocabularies` the engine takes a draft of another vocabulary.
    """
    recipe = context.recipe
    ranks, placement = recipe.target.parallel.ranks, recipe.serving.placement
    if placement and len(placement.target) != ranks:
        message = f"the target is divided over {ranks} GPUs, and placed on {len(placement.target)}"
        yield Diagnostic("serving.placement.target", "placement", message, f"name {ranks}")
    if placement and placement.draft and placement.draft != placement.target:
        message = "this engine loads the draft where the target is"
        yield Diagnostic("serving.placement.draft", "placement", message, "remove it")
    ours, theirs = context.target_config, context.draft_config
    if ours and theirs and ours.vocab_size != theirs.vocab_size and not maps_vocabularies:
        message = (
            f"the draft has {theirs.vocab_size} vocabulary entries, the target {ours.vocab_size}: this "
            "engine runs both as they are, and cannot pad the smaller one"
        )
        hint = "use a backend that converts checkpoints: it pads the smaller one"
        yield Diagnostic("speculation.draft.model", "vocabulary", message, hint)


def check_num_tokens(context: PlanContext) -> Iterable[Diagnostic]:
    """Yield where a step is too small for a full batch that verifies its drafts."""
    engine, tokens = context.recipe.engine, context.draft_shape.max_tokens + 1
    least = engine.max_batch_size * tokens
    if engine.max_num_tokens and engine.max_num_tokens < least:
        message = f"max_num_tokens {engine.max_num_tokens} is less than max_batch_size {engine.max_batch_size} times"
        message += f" {tokens} token{'s' * (tokens > 1)} to verify"
        yield Diagnostic("engine.max_num_tokens", "out-of-range", message, f"at least {least}")


def plan_source_memory(context: PlanContext) -> list[MemoryPlan]:
    """Return a plan for each GPU that the target is divided over; none for a model that no family describes.

    What drafts lies on the same GPUs, divided alike. The KV cache is that of full batches of the longest texts: servers
    take all that is left, and hold as many texts as fit.
    """
    if context.target_config is None:
        return []
    recipe, engine = context.recipe, context.recipe.engine
    parallel, placement, gpu = recipe.target.parallel, recipe.serving.placement, GPUS.get((engine.gpu or "").lower())
    tokens = engine.max_batch_size * engine.max_seq_len
    target, draft = _stored(context, "target", recipe.target), QuantFormat()
    draft_bytes = (context.draft_head.num_parameters if context.draft_head else 0) * ITEM_BYTES // parallel.ranks
    if context.draft_config and recipe.speculation.draft:
        draft = _stored(context, "draft", recipe.speculation.draft)
        draft_bytes = weight_bytes(context.draft_config, draft) // parallel.ranks
        draft_bytes += tokens * _kv_bytes(context.draft_config, draft, parallel.tensor) // parallel.pipeline
    return [
        MemoryPlan(
            id=str(number),
            weights_bytes=weight_bytes(context.target_config, target) // parallel.ranks,
            kv_cache_bytes=tokens * _kv_bytes(context.target_config, target, parallel.tensor) // parallel.pipeline,
            draft_bytes=draft_bytes,
            activation_bytes=_activation_bytes(context, context.target_config),
            limit_bytes=gpu.memory_bytes if gpu else 0,
        )
        for number in (placement.target if placement else range(parallel.ranks))
    ]


def weight_bytes(config: ModelConfig, quant_format: QuantFormat) -> int:
    """Return the bytes of all weights; embedding and head stay in 16 bits where the layers have 8."""
    if quant_format.weights == "none":
        return config.num_parameters * ITEM_BYTES
    kept = config.vocab_size * config.hidden_size * (1 if config.tied_embeddings else 2)
    return kept * ITEM_BYTES + config.num_parameters - kept


def _stored(context: PlanContext, role: str, asked: ModelSource) -> QuantFormat:
    """Return how a model is held: as its source is, or where that is not quantized as the recipe wants it."""
    found, wanted = source_format(context.sources[role]), asked.quantization
    return QuantFormat(
        wanted.weights if found.weights == "none" else found.weights,
        wanted.kv_cache if found.kv_cache == "none" else found.kv_cache,
    )


def _kv_bytes(config: ModelConfig, quant_format: QuantFormat, tensor: int) -> int:
    """Return the bytes of a token's keys and values on one GPU; each has a whole head at least."""
    heads = max(1, config.num_kv_heads // tensor)
    item = 1 if quant_format.kv_cache == "fp8" else ITEM_BYTES
    return config.kv_bytes_per_token(item) // config.num_kv_heads * heads


def _activation_bytes(context: PlanContext, config: ModelConfig) -> int:
    """Return the bytes of the widest prefill step's activations and of a verification step's logits in 32 bits."""
    engine, draft_tokens = context.recipe.engine, context.draft_shape.max_tokens
    heads = (config.num_heads + 2 * config.num_kv_heads) * config.head_size
    width = 3 * config.hidden_size + (heads + 3 * config.intermediate_size) // context.recipe.target.parallel.tensor
    logits = engine.max_batch_size * (draft_tokens + 1) * config.vocab_size
    return num_tokens_of(engine, draft_tokens) * width * ITEM_BYTES + logits * 4
