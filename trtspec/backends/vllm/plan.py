# SPDX-License-Identifier: Apache-2.0
"""The artifact of vLLM: unconverted checkpoints, and a repository whose model.json names them."""

from __future__ import annotations

import json

from trtspec.backends.artifact_plan import ArtifactPlan
from trtspec.backends.common.steps import companion_steps, copy_steps, gpu_record, served_path
from trtspec.backends.context import PlanContext
from trtspec.backends.steps.repository import read_models
from trtspec.backends.vllm.model_json import model_json
from trtspec.backends.vllm.repository import MODELS, EmitVllmRepository
from trtspec.store.artifact_paths import REPOSITORY
from trtspec.store.files import FileReader
from trtspec.store.step import Step


def plan_artifact(context: PlanContext, reader: FileReader) -> ArtifactPlan:
    """Return the steps of the artifact."""
    document = model_json(context, served_path("target"), served_path("draft"))
    steps: dict[str, Step] = {**copy_steps(context, reader), **companion_steps(context, reader)}
    steps[REPOSITORY] = EmitVllmRepository(read_models(MODELS), json.dumps(document))
    return ArtifactPlan(steps, tools={"vllm": context.version}, gpu=gpu_record(context), facts={"model_json": document})
