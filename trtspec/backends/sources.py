# SPDX-License-Identifier: Apache-2.0
"""Sources that an engine runs as they lie: how they are stored, what that takes of each GPU, what it can't be with.

For engines that convert nothing. How a checkpoint says that it is quantized: NVIDIA/Model-Optimizer:
modelopt/torch/export/convert_hf_config.py@a2fbac7 (hf_quant_config.json, or quantization_config in config.json).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from trtspec.checkpoint.model_config import ModelConfig
from trtspec.checkpoint.source import SourceFacts
from trtspec.backends.base import Case, Objection, Storage
from trtspec.backends.gpus import GPUS
from trtspec.backends.memory import MemoryPlan
from trtspec.recipe.resolve import num_tokens_of
from trtspec.recipe.schema import ModelSource

ITEM_BYTES = 2  # of bfloat16 and float16, in which everything is kept that is not quantized
ALGORITHMS = {"FP8": "fp8", "FP8_PER_CHANNEL_PER_TOKEN": "fp8_rowwise"}


def source_storage(facts: SourceFacts) -> Storage:
    """Return how a source is stored: as recipes call it, or by the name that the source gives it."""
    said = _section(facts.quantization, "quantization") or _section(facts.config, "quantization_config")
    if not said:
        return Storage()
    algorithm = str(said.get("quant_algo") or said.get("quant_method") or "quantized")
    cache = said.get("kv_cache_quant_algo") or said.get("kv_cache_scheme")
    return Storage(ALGORITHMS.get(algorithm, algorithm.lower()), "fp8" if cache else "none")


def _section(document: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    found = document.get(key)
    return found if isinstance(found, Mapping) else {}


def models_of(case: Case) -> Iterable[tuple[str, str, ModelSource]]:
    """Yield (role, recipe path, what the recipe says) of each model that the recipe names."""
    yield "target", "target", case.recipe.target
    if case.recipe.speculation.draft:
        yield "draft", "speculation.draft", case.recipe.speculation.draft


def placement_objections(case: Case) -> Iterable[Objection]:
    """Yield what keeps draft and target from sharing their GPUs: engines load both in one place, divided alike."""
    recipe, draft = case.recipe, case.recipe.speculation.draft
    ranks, placement = recipe.target.parallel.ranks, recipe.serving.placement
    if placement and len(placement.target) != ranks:
        message = f"the target is divided over {ranks} GPUs, and placed on {len(placement.target)}"
        yield Objection("serving.placement.target", "placement", message, f"name {ranks}")
    if placement and placement.draft and placement.draft != placement.target:
        message = "this engine loads the draft where the target is"
        yield Objection("serving.placement.draft", "placement", message, "remove it")
    if case.draft and draft and case.target and case.target.vocab_size != case.draft.vocab_size:
        message = (
            f"the draft has {case.draft.vocab_size} vocabulary entries, the target {case.target.vocab_size}: this "
            "engine runs both as they are, and cannot pad the smaller one"
        )
        yield Objection("speculation.draft.model", "vocabulary", message, "use engine.backend: tensorrt_llm")


def plan_source_memory(case: Case) -> list[MemoryPlan]:
    """Return a plan for each GPU that the target is divided over; none for a model that no family describes.

    What drafts lies on the same GPUs, divided alike. The KV cache is that of full batches of the longest texts: servers
    take all that is left, and hold as many texts as fit.
    """
    if case.target is None:
        return []
    recipe, engine = case.recipe, case.recipe.engine
    parallel, placement, gpu = recipe.target.parallel, recipe.serving.placement, GPUS.get((engine.gpu or "").lower())
    tokens = engine.max_batch_size * engine.max_seq_len
    target, draft = _stored(case, "target", recipe.target), Storage()
    draft_bytes = (case.part.num_parameters if case.part else 0) * ITEM_BYTES // parallel.ranks
    if case.draft and recipe.speculation.draft:
        draft = _stored(case, "draft", recipe.speculation.draft)
        draft_bytes = weight_bytes(case.draft, draft) // parallel.ranks
        draft_bytes += tokens * _kv_bytes(case.draft, draft, parallel.tensor) // parallel.pipeline
    return [
        MemoryPlan(
            id=str(number),
            weights_bytes=weight_bytes(case.target, target) // parallel.ranks,
            kv_cache_bytes=tokens * _kv_bytes(case.target, target, parallel.tensor) // parallel.pipeline,
            draft_bytes=draft_bytes,
            activation_bytes=_activation_bytes(case, case.target),
            limit_bytes=gpu.memory_bytes if gpu else 0,
        )
        for number in (placement.target if placement else range(parallel.ranks))
    ]


def weight_bytes(config: ModelConfig, storage: Storage) -> int:
    """Return the bytes of all weights; embedding and head stay in 16 bits where the layers have 8."""
    if storage.weights == "none":
        return config.num_parameters * ITEM_BYTES
    kept = config.vocab_size * config.hidden_size * (1 if config.tied_embeddings else 2)
    return kept * ITEM_BYTES + config.num_parameters - kept


def _stored(case: Case, role: str, asked: ModelSource) -> Storage:
    """Return how a model is held: as its source is, or where that is not quantized as the recipe wants it."""
    found, wanted = source_storage(case.sources[role]), asked.quantization
    return Storage(
        wanted.weights if found.weights == "none" else found.weights,
        wanted.kv_cache if found.kv_cache == "none" else found.kv_cache,
    )


def _kv_bytes(config: ModelConfig, storage: Storage, tensor: int) -> int:
    """Return the bytes of a token's keys and values on one GPU; each has a whole head at least."""
    heads = max(1, config.num_kv_heads // tensor)
    item = 1 if storage.kv_cache == "fp8" else ITEM_BYTES
    return config.kv_bytes_per_token(item) // config.num_kv_heads * heads


def _activation_bytes(case: Case, config: ModelConfig) -> int:
    """Return the bytes of the widest prefill step's activations and of a verification step's logits in 32 bits."""
    engine, nodes = case.recipe.engine, case.extent.nodes
    heads = (config.num_heads + 2 * config.num_kv_heads) * config.head_size
    width = 3 * config.hidden_size + (heads + 3 * config.intermediate_size) // case.recipe.target.parallel.tensor
    logits = engine.max_batch_size * (nodes + 1) * config.vocab_size
    return num_tokens_of(engine, nodes) * width * ITEM_BYTES + logits * 4
