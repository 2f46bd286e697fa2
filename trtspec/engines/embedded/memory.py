# SPDX-License-Identifier: Apache-2.0
"""What the embedded engine takes of this machine's memory."""

from __future__ import annotations

from trtspec.engines.base import Case, Storage
from trtspec.engines.memory import MemoryPlan, plan_memory
from trtspec.recipe.resolve import num_tokens_of


def memory(case: Case) -> list[MemoryPlan]:
    """Return the one device's plan; the case has a target, as this engine runs converted checkpoints."""
    if case.target is None:
        raise ValueError("the embedded engine runs models that a family describes")
    engine = case.recipe.engine
    return [
        plan_memory(
            case.target,
            case.draft,
            rows=engine.max_batch_size,
            seq_len=min(engine.max_seq_len, case.target.max_positions),
            num_tokens=num_tokens_of(engine, case.extent.nodes),
            nodes=case.extent.nodes,
            part_parameters=case.part.num_parameters if case.part else 0,
            quantized=case.target_storage != Storage(),
        )
    ]
