# SPDX-License-Identifier: Apache-2.0
"""Estimate the device memory of a target and its drafter from their configs alone."""

from __future__ import annotations

import os
from dataclasses import dataclass

from trtspec.checkpoints.model_config import ModelConfig

FLOAT32 = 4


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes on one device; `draft_bytes` covers the draft's weights and KV cache, `limit_bytes` is 0 if unknown."""

    id: str
    weights_bytes: int
    kv_cache_bytes: int
    draft_bytes: int
    activation_bytes: int
    limit_bytes: int

    @property
    def total_bytes(self) -> int:
        """Return the sum of all parts."""
        return self.weights_bytes + self.kv_cache_bytes + self.draft_bytes + self.activation_bytes


def plan_memory(
    target: ModelConfig,
    draft: ModelConfig | None,
    *,
    rows: int,
    seq_len: int,
    num_tokens: int,
    max_draft_tokens: int,
    head_parameters: int = 0,
    quantized: bool = False,
    kept_tokens: int = 0,
    longer: int = 1,
) -> MemoryPlan:
    """Return the CPU memory plan of the torch engine, which computes in float32, and for FP8 models in float64.

    KV caches hold `rows` texts of `seq_len` tokens, plus `kept_tokens` of finished texts. The largest activations are
    a prefill step's of `num_tokens` (hidden state, queries, keys and values, both MLP branches) and the logits
    of a verify step of `max_draft_tokens` draft tokens. The drafter is either a model, whose texts are `longer` times
    as long, or a head with `head_parameters` parameters.
    """
    item = 8 if quantized else FLOAT32
    positions = rows * seq_len + kept_tokens
    heads = (target.num_heads + 2 * target.num_kv_heads) * target.head_size
    width = 3 * target.hidden_size + heads + 3 * target.intermediate_size
    logits = rows * (max_draft_tokens + 1) * target.vocab_size
    draft_bytes = head_parameters * item
    if draft:
        draft_bytes = _weights_bytes(draft, item) + longer * positions * draft.kv_bytes_per_token(item)
    return MemoryPlan(
        id="cpu",
        weights_bytes=_weights_bytes(target, item),
        kv_cache_bytes=positions * target.kv_bytes_per_token(item),
        draft_bytes=draft_bytes,
        activation_bytes=(min(num_tokens, rows * seq_len) * width + logits) * item,
        limit_bytes=os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
    )


def _weights_bytes(model: ModelConfig, item: int) -> int:
    """Return the bytes of a model's weights; a tied LM head is packed in float32, separately from the embedding."""
    packed = model.vocab_size * model.hidden_size if model.tied_embeddings and item == FLOAT32 else 0
    return (model.num_parameters + packed) * item
