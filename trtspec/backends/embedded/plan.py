# SPDX-License-Identifier: Apache-2.0
"""The artifact of the torch engine: converted checkpoints, and a repository with the models that run them."""

from __future__ import annotations

from trtspec.backends.artifact_plan import ArtifactPlan
from trtspec.backends.common.steps import companion_steps, conversion_steps, padding_notes, serving_settings
from trtspec.backends.context import PlanContext
from trtspec.backends.embedded.repository import EmitTorchRepository
from trtspec.backends.steps.repository import read_models
from trtspec.engine.settings import EngineSettings
from trtspec.store.artifact_paths import REPOSITORY, checkpoint
from trtspec.store.files import FileReader
from trtspec.store.step import Step


def plan_artifact(context: PlanContext, reader: FileReader) -> ArtifactPlan:
    """Return the steps of the artifact."""
    checkpoints = {checkpoint(role): step for role, step in conversion_steps(context, reader).items()}
    steps: dict[str, Step] = {**checkpoints, **companion_steps(context, reader)}
    settings = EngineSettings.from_recipe(context.resolved)
    steps[REPOSITORY] = EmitTorchRepository(
        read_models(),
        serving_settings(context),
        settings.as_json(),
        context.draft is not None,
        context.target_config.vocab_size if context.target_config else 0,
    )
    return ArtifactPlan(steps, notes=padding_notes(context))
