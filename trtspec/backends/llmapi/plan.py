# SPDX-License-Identifier: Apache-2.0
"""The artifact of TensorRT-LLM's LLM API: the checkpoints as they are, and a repository whose model.yaml names them."""

from __future__ import annotations

import json

from trtspec.backends.llmapi.installed import validate_installed
from trtspec.backends.llmapi.model_yaml import model_yaml
from trtspec.backends.llmapi.speculative import is_greedy_only
from trtspec.graph.step import Step
from trtspec.backends.artifact_plan import Ground, Layout
from trtspec.backends.common_steps import companions, copied, served_path
from trtspec.steps.repository import EmitLlmApiRepository, read_models
from trtspec.backends.llmapi.repository import LlmApiRepositorySettings


def layout(ground: Ground) -> Layout:
    """Return the steps."""
    document = model_yaml(ground.case, served_path("target"), served_path("draft"))
    steps: dict[str, Step] = {**copied(ground), **companions(ground)}
    steps["model_repository"] = EmitLlmApiRepository(read_models(), _settings(ground), json.dumps(document))
    return Layout(
        steps,
        tools={"tensorrt_llm": ground.recipe.engine.version},
        gpu={"name": ground.recipe.engine.gpu} if ground.recipe.engine.gpu else {},
        facts={"model_yaml": document},
        problems=lambda: validate_installed(document),
    )


def _settings(ground: Ground) -> LlmApiRepositorySettings:
    engine, serving = ground.recipe.engine, ground.recipe.serving
    return LlmApiRepositorySettings(
        max_batch_size=engine.max_batch_size,
        max_queue_size=serving.max_queue_size,
        max_queue_delay_us=serving.max_queue_delay_us,
        streaming=serving.streaming,
        max_input_len=engine.max_input_len,
        max_seq_len=engine.max_seq_len,
        gpu_ids=tuple(serving.placement.target),
        greedy_only=is_greedy_only(ground.case),
    )


LAYOUT = layout
