# SPDX-License-Identifier: Apache-2.0
"""The artifact of the embedded engine: converted checkpoints, and a repository whose models run them."""

from __future__ import annotations

import json

from trtspec.graph.step import Step
from trtspec.backends.artifact_plan import Ground, Layout
from trtspec.backends.common_steps import companions, converted, padding_notes
from trtspec.steps.repository import EmitRepository, read_models
from trtspec.triton.emission import RepositorySettings


def layout(ground: Ground) -> Layout:
    """Return the steps."""
    checkpoints = {f"checkpoints/{role}": step for role, step in converted(ground).items()}
    steps: dict[str, Step] = {**checkpoints, **companions(ground)}
    steps["model_repository"] = EmitRepository(read_models(), _settings(ground))
    return Layout(steps, notes=padding_notes(ground))


def _settings(ground: Ground) -> RepositorySettings:
    engine, serving, speculation = ground.recipe.engine, ground.recipe.serving, ground.recipe.speculation
    return RepositorySettings(
        method=speculation.method,
        draft_len=speculation.draft_len,
        options=json.dumps(speculation.options, sort_keys=True),
        has_draft=ground.findings.draft is not None,
        max_batch_size=engine.max_batch_size,
        max_input_len=engine.max_input_len,
        max_seq_len=engine.max_seq_len,
        max_num_tokens=engine.max_num_tokens,
        max_queue_size=serving.max_queue_size,
        max_queue_delay_us=serving.max_queue_delay_us,
        streaming=serving.streaming,
    )


LAYOUT = layout
