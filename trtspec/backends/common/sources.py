# SPDX-License-Identifier: Apache-2.0
"""What backends share that run Hugging Face checkpoints as they are: placement, and memory on each GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from trtspec.backends.common.memory import MemoryPlan
from trtspec.backends.context import PlanContext
from trtspec.checkpoints.memory_profile import Outline, read_outline
from trtspec.checkpoints.model_config import ModelConfig
from trtspec.checkpoints.quant.quant_config import QuantFormat, source_format
from trtspec.checkpoints.source import Source
from trtspec.core.diagnostics import Diagnostic
from trtspec.core.errors import CheckpointError
from trtspec.core.gpus import GPUS
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


def check_num_tokens(context: PlanContext, drafts: int | None = None) -> Iterable[Diagnostic]:
    """Yield where a step is too small for a full batch that verifies its drafts, by default the draft shape's."""
    engine, tokens = context.recipe.engine, (context.draft_shape.max_tokens if drafts is None else drafts) + 1
    least = engine.max_batch_size * tokens
    if engine.max_num_tokens and engine.max_num_tokens < least:
        message = f"max_num_tokens {engine.max_num_tokens} is less than max_batch_size {engine.max_batch_size} times"
        message += f" {tokens} token{'s' * (tokens > 1)} to verify"
        yield Diagnostic("engine.max_num_tokens", "out-of-range", message, f"at least {least}")


def check_online(context: PlanContext, engine: str, online: Iterable[str]) -> Iterable[Diagnostic]:
    """Yield where the recipe wants another format than the source has, and the engine cannot make it while it loads.

    `engine` is its name and `online` are the formats that it makes of sources in 16 bits.
    """
    for role, path, asked in models_of(context):
        found, wanted = source_format(context.sources[role]).weights, asked.quantization.weights
        if wanted in ("none", found):
            continue
        if found != "none":
            message = f"{wanted} weights are wanted, the {role} is {found}"
            yield Diagnostic(f"{path}.quantization.weights", "quantization", message, "leave it out")
        elif wanted not in online:
            message = f"{engine} {context.version} does not make {wanted} while it loads"
            hint = f"name a checkpoint that is quantized, or take {', '.join(online)}"
            yield Diagnostic(f"{path}.quantization.weights", "quantization", message, hint)
        elif set(asked.quantization.exclude) != {"lm_head"}:
            message = f"{engine} quantizes every layer and not the head while it loads, whatever exclude says"
            yield Diagnostic(f"{path}.quantization.exclude", "unused", message, severity="warning")


@dataclass(frozen=True)
class Budget:
    """What `serving.kv_cache_fraction` leaves an engine of a GPU, in bytes: `memory` is all of the GPU's.

    `fixed` is what weights and activations take, `activations` the latter alone.
    """

    memory: int
    fraction: float
    fixed: int
    activations: int


def whole_gpu(budget: Budget) -> int:
    """Return the limit of an engine that takes all of the GPU."""
    return budget.memory


def share_of_all(budget: Budget) -> int:
    """Return the limit where the fraction is of all memory, weights and activations included."""
    return int(budget.memory * budget.fraction)


def share_without_activations(budget: Budget) -> int:
    """Return the limit where the fraction is of all memory for weights and KV cache; activations take of the rest."""
    share = int(budget.memory * budget.fraction)
    return share + min(budget.activations, budget.memory - share)


def share_of_the_rest(budget: Budget) -> int:
    """Return the limit where the fraction is of what weights and activations leave for KV caches."""
    return budget.memory - int(max(0, budget.memory - budget.fixed) * (1 - budget.fraction))


def plan_source_memory(context: PlanContext, limit: Callable[[Budget], int] = whole_gpu) -> list[MemoryPlan]:
    """Return a plan for each GPU that the target is divided over; none for a model whose config says too little.

    What drafts lies on the same GPUs, divided alike. The KV cache is that of full batches of the longest texts: servers
    take all that is left, and hold as many texts as fit. `limit` returns what the engine may take of a GPU.
    """
    recipe, found = context.recipe, _taken(context, "target")
    if found is None:
        return []
    placement, gpu = recipe.serving.placement, GPUS.get((recipe.engine.gpu or "").lower())
    draft = _draft_bytes(context)
    is_known = gpu is not None and recipe.engine.device != "cpu"
    fixed = found.weights + found.activation + draft
    budget = Budget(gpu.memory_bytes if gpu else 0, recipe.serving.kv_cache_fraction, fixed, found.activation)
    return [
        MemoryPlan(
            id=str(number),
            weights_bytes=found.weights,
            kv_cache_bytes=found.cache,
            draft_bytes=draft,
            activation_bytes=found.activation,
            limit_bytes=limit(budget) if is_known else 0,
        )
        for number in (placement.target if placement else range(recipe.target.parallel.ranks))
    ]


def _draft_bytes(context: PlanContext) -> int:
    """Return what drafts takes of each GPU: of a model weights and cache, of a head what its file holds."""
    if context.method.drafts_with == "head":
        return context.sources["draft"].nbytes // context.recipe.target.parallel.ranks
    found = _taken(context, "draft")
    return found.weights + found.cache if found else 0


class Taken(NamedTuple):
    """Bytes that a model takes of each GPU it is divided over: weights, cache, and the activations of a step."""

    weights: int
    cache: int
    activation: int


def _taken(context: PlanContext, role: str) -> Taken | None:
    """Return what target or draft takes, by its family, or where none describes it by its config and headers."""
    model = context.target if role == "target" else context.draft
    asked = context.recipe.target if role == "target" else context.recipe.speculation.draft
    if asked is None or role not in context.sources:
        return None
    stored = stored_format(context.sources[role], asked)
    if model is None:
        try:
            return _taken_of_outline(context, read_outline(context.sources[role]), context.sources[role], stored)
        except CheckpointError:
            return None
    engine, parallel = context.recipe.engine, context.recipe.target.parallel
    cache = engine.max_batch_size * _text_bytes(model.config, engine.max_seq_len, stored, parallel.tensor)
    activation = _activation_bytes(
        context,
        model.config.hidden_size,
        (model.config.num_heads + 2 * model.config.num_kv_heads) * model.config.head_size,
        model.config.intermediate_size,
        model.config.vocab_size,
    )
    return Taken(weight_bytes(model.config, stored) // parallel.ranks, cache // parallel.pipeline, activation)


def _taken_of_outline(context: PlanContext, outline: Outline, source: Source, stored: QuantFormat) -> Taken:
    """Return what a model takes as it is stored; where the engine makes it FP8, embedding and head keep 16 bits."""
    engine, parallel, weights = context.recipe.engine, context.recipe.target.parallel, source.nbytes
    if stored.weights != source_format(source).weights:
        kept = outline.kept_numbers * ITEM_BYTES
        weights = kept + (weights - kept) // ITEM_BYTES
    item = 1 if stored.kv_cache == "fp8" else ITEM_BYTES
    cache = outline.cache_bytes(engine.max_batch_size, engine.max_seq_len, parallel.tensor, item)
    activation = _activation_bytes(
        context, outline.hidden_size, outline.attention_width, outline.active_width, outline.vocab_size
    )
    return Taken(weights // parallel.ranks, cache // parallel.pipeline, activation)


def weight_bytes(config: ModelConfig, quant_format: QuantFormat) -> int:
    """Return the bytes of all weights; embedding and head stay in 16 bits where the layers have 8."""
    if quant_format.weights == "none":
        return config.num_parameters * ITEM_BYTES
    kept = config.vocab_size * config.hidden_size * (1 if config.tied_embeddings else 2)
    return kept * ITEM_BYTES + config.num_parameters - kept


def stored_format(source: Source, asked: ModelSource) -> QuantFormat:
    """Return how a model is held: as its source is, or where that is not quantized as the recipe wants it."""
    found, wanted = source_format(source), asked.quantization
    return QuantFormat(
        wanted.weights if found.weights == "none" else found.weights,
        wanted.kv_cache if found.kv_cache == "none" else found.kv_cache,
    )


def _text_bytes(config: ModelConfig, tokens: int, quant_format: QuantFormat, tensor: int) -> int:
    """Return the bytes of a text's keys and values on one GPU, which has a whole head of each at least.

    Layers with a sliding window keep the tokens of the window.
    """
    heads = max(1, config.num_kv_heads // tensor)
    item = 1 if quant_format.kv_cache == "fp8" else ITEM_BYTES
    kept = [
        min(tokens, config.sliding_window) if config.has_window(layer) else tokens for layer in range(config.num_layers)
    ]
    return 2 * sum(kept) * heads * config.head_size * item


def _activation_bytes(context: PlanContext, hidden: int, attention: int, inner: int, vocab: int) -> int:
    """Return the bytes of the widest prefill step's activations and of a verification step's logits in 32 bits."""
    engine, draft_tokens = context.recipe.engine, context.draft_shape.max_tokens
    width = 3 * hidden + (attention + 3 * inner) // context.recipe.target.parallel.tensor
    logits = engine.max_batch_size * (draft_tokens + 1) * vocab
    return num_tokens_of(engine, draft_tokens) * width * ITEM_BYTES + logits * 4
