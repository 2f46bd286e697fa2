# SPDX-License-Identifier: Apache-2.0
"""The artifact of TensorRT-LLM's LLM API: unconverted checkpoints, and a repository whose model.yaml names them."""

from __future__ import annotations

import json

from trtspec.backends.artifact_plan import ArtifactPlan
from trtspec.backends.common.steps import companion_steps, copy_steps, gpu_record, served_path, serving_settings
from trtspec.backends.context import PlanContext
from trtspec.backends.llmapi.installed import validate_installed
from trtspec.backends.llmapi.model_yaml import model_yaml
from trtspec.backends.llmapi.repository import MODELS, EmitLlmApiRepository
from trtspec.backends.llmapi.speculative import is_greedy_only
from trtspec.backends.steps.repository import read_models
from trtspec.store.artifact_paths import REPOSITORY
from trtspec.store.files import FileReader
from trtspec.store.step import Step


def plan_artifact(context: PlanContext, reader: FileReader) -> ArtifactPlan:
    """Return the steps of the artifact."""
    document = model_yaml(context, served_path("target"), served_path("draft"))
    steps: dict[str, Step] = {**copy_steps(context, reader), **companion_steps(context, reader)}
    engine = context.resolved.engine
    steps[REPOSITORY] = EmitLlmApiRepository(
        read_models(MODELS),
        serving_settings(context),
        json.dumps(document),
        max_input_len=engine.max_input_len,
        max_seq_len=engine.max_seq_len,
        gpu_ids=tuple(context.resolved.serving.placement.target),
        greedy_only=is_greedy_only(context),
    )
    return ArtifactPlan(
        steps,
        tools={"tensorrt_llm": context.version},
        gpu=gpu_record(context),
        facts={"model_yaml": document},
        problems=lambda: validate_installed(document),
    )
