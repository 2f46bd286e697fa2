# SPDX-License-Identifier: Apache-2.0
"""The artifact of SGLang: unconverted checkpoints, and a repository whose engine.json names them."""

from __future__ import annotations

import json

from trtspec.backends.artifact_plan import ArtifactPlan
from trtspec.backends.common.steps import companion_steps, copy_steps, gpu_record, served_path, serving_settings
from trtspec.backends.context import PlanContext
from trtspec.backends.sglang.arguments import adaptive_config, engine_arguments
from trtspec.backends.sglang.repository import MODELS, EmitSglangRepository
from trtspec.backends.steps.repository import read_models
from trtspec.store.artifact_paths import REPOSITORY
from trtspec.store.files import FileReader
from trtspec.store.step import Step


def plan_artifact(context: PlanContext, reader: FileReader) -> ArtifactPlan:
    """Return the steps of the artifact."""
    document = engine_arguments(context, served_path("target"), served_path("draft"))
    adaptive, engine = adaptive_config(context), context.resolved.engine
    steps: dict[str, Step] = {**copy_steps(context, reader), **companion_steps(context, reader)}
    steps[REPOSITORY] = EmitSglangRepository(
        read_models(MODELS),
        serving_settings(context),
        json.dumps(document),
        json.dumps(adaptive) if adaptive else "",
        max_input_len=engine.max_input_len,
        max_seq_len=engine.max_seq_len,
        gpu_ids=tuple(context.resolved.serving.placement.target),
    )
    facts = {"engine_json": document} | ({"adaptive_json": adaptive} if adaptive else {})
    return ArtifactPlan(steps, tools={"sglang": context.version}, gpu=gpu_record(context), facts=facts)
