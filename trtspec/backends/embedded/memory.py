# SPDX-License-Identifier: Apache-2.0
"""The memory plan of the torch engine on this machine."""

from __future__ import annotations

from trtspec.backends.common.memory import MemoryPlan, plan_memory
from trtspec.backends.context import PlanContext
from trtspec.checkpoints.quant.quant_config import QuantFormat
from trtspec.checkpoints.translation import MAX_LENGTH_RATIO
from trtspec.engine.settings import EngineSettings
from trtspec.recipe.resolve import resolve_max_num_tokens


def memory(context: PlanContext) -> list[MemoryPlan]:
    """Return the plan of the single device; the context has a target, since this engine runs converted checkpoints."""
    if context.target_config is None:
        raise ValueError("the torch engine requires a model with a family")
    engine, shape = context.recipe.engine, context.draft_shape
    return [
        plan_memory(
            context.target_config,
            context.draft_config,
            rows=engine.max_batch_size,
            seq_len=min(engine.max_seq_len, context.target_config.stretched_positions),
            num_tokens=resolve_max_num_tokens(engine, shape.max_tokens),
            max_draft_tokens=shape.max_tokens,
            head_parameters=context.draft_head.num_parameters if context.draft_head else 0,
            kept_tokens=EngineSettings.from_recipe(context.resolved).reuse_tokens,
            longer=MAX_LENGTH_RATIO if context.translates else 1,
            quantized=context.target_format != QuantFormat(),
        )
    ]
