# SPDX-License-Identifier: Apache-2.0
"""The artifact of vLLM: the checkpoints as they are, and a repository whose model.json names them."""

from __future__ import annotations

import json

from trtspec.backends.vllm.model_json import model_json
from trtspec.graph.step import Step
from trtspec.backends.artifact_plan import Ground, Layout
from trtspec.backends.common_steps import companions, copied, served_path
from trtspec.steps.repository import EmitVllmRepository, read_models
from trtspec.backends.vllm.repository import VllmRepositorySettings


def layout(ground: Ground) -> Layout:
    """Return the steps."""
    document = model_json(ground.case, served_path("target"), served_path("draft"))
    steps: dict[str, Step] = {**copied(ground), **companions(ground)}
    steps["model_repository"] = EmitVllmRepository(read_models(), VllmRepositorySettings(), json.dumps(document))
    return Layout(
        steps,
        tools={"vllm": ground.recipe.engine.version},
        gpu={"name": ground.recipe.engine.gpu} if ground.recipe.engine.gpu else {},
        facts={"model_json": document},
    )


LAYOUT = layout
