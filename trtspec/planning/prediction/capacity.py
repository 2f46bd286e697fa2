# SPDX-License-Identifier: Apache-2.0
"""Number of texts that fit a recipe's GPUs, by the backend's memory plan."""

from __future__ import annotations

from dataclasses import replace

from trtspec.backends.base import find_backend
from trtspec.backends.context import PlanContext

MOST_TEXTS = 4096


def largest_batch(context: PlanContext) -> int | None:
    """Return the largest `max_batch_size` that fits, 0 if none does, or None if the memory is unknown.

    All texts are assumed to have `max_seq_len` tokens, as in `plan`.
    """
    if not (gpus := find_backend(context.choice.name).memory(context)) or not all(gpu.limit_bytes for gpu in gpus):
        return None
    fits, too_many = 0, 1
    while too_many <= MOST_TEXTS and _holds(context, too_many):
        fits, too_many = too_many, 2 * too_many
    too_many = min(too_many, MOST_TEXTS + 1)
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        fits, too_many = (middle, too_many) if _holds(context, middle) else (fits, middle)
    return fits


def _holds(context: PlanContext, texts: int) -> bool:
    engine = context.recipe.engine.model_copy(update={"max_batch_size": texts, "max_num_tokens": None})
    larger = replace(context, recipe=context.recipe.model_copy(update={"engine": engine}))
    return all(gpu.total_bytes <= gpu.limit_bytes for gpu in find_backend(context.choice.name).memory(larger))
