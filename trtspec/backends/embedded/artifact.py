# SPDX-License-Identifier: Apache-2.0
"""The artifact of the torch engine: converted checkpoints, and a Triton repository with ensemble -> tensorrt_llm.

The models preprocessing and postprocessing are for clients that call tensorrt_llm directly.
"""

from __future__ import annotations

from trtspec.backends.base import ArtifactPlan
from trtspec.backends.common.steps import (
    TEXT_MODELS,
    EmitModels,
    companion_steps,
    conversion_steps,
    padding_notes,
    read_models,
    serving_settings,
)
from trtspec.backends.context import PlanContext
from trtspec.engine.settings import EngineSettings
from trtspec.serving.triton.repository_writer import Parameters, ServingSettings
from trtspec.store.artifact_paths import REPOSITORY, TOKENIZER, checkpoint, from_model
from trtspec.store.files import FileReader


def repository_step(
    serving: ServingSettings, settings: EngineSettings, *, has_draft: bool, vocab_size: int = 0
) -> EmitModels:
    """Return the step that emits the models; `vocab_size` is the width of the target's logits."""
    parameters: Parameters = {
        "tokenizer_dir": from_model(TOKENIZER),
        "gpt_model_path": from_model(checkpoint("target")),
        "draft_model_path": from_model(checkpoint("draft")) if has_draft else "",
        "engine_settings": settings.as_json(),
        "warmup": serving.warmup or None,
        "vocab_size": vocab_size,
        "max_input_len": settings.max_input_len,
    }
    return EmitModels(read_models(), serving, TEXT_MODELS, parameters)


def plan_artifact(context: PlanContext, reader: FileReader) -> ArtifactPlan:
    checkpoints = {checkpoint(role): step for role, step in conversion_steps(context, reader).items()}
    repository = repository_step(
        serving_settings(context),
        EngineSettings.from_recipe(context.resolved),
        has_draft=context.draft is not None,
        vocab_size=context.target_config.vocab_size if context.target_config else 0,
    )
    steps = {**checkpoints, **companion_steps(context, reader), REPOSITORY: repository}
    return ArtifactPlan(steps, notes=padding_notes(context))
