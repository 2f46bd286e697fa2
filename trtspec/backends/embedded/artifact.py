# SPDX-License-Identifier: Apache-2.0
"""The artifact of the torch engine: converted checkpoints, and the Triton repository ensemble -> tensorrt_llm.

preprocessing and postprocessing are for clients that call tensorrt_llm directly.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from trtspec.backends.base import ArtifactPlan
from trtspec.backends.common.steps import companion_steps, conversion_steps, padding_notes, serving_settings
from trtspec.backends.context import PlanContext
from trtspec.backends.steps.files import EmitRepository, read_models
from trtspec.engine.settings import EngineSettings
from trtspec.serving.triton.names import ENSEMBLE, POSTPROCESSING, PREPROCESSING, TARGET
from trtspec.serving.triton.repository_writer import Parameters, ServingSettings, emit_model
from trtspec.store.artifact_paths import REPOSITORY, TOKENIZER, checkpoint, from_model
from trtspec.store.files import FileReader
from trtspec.store.step import Step

MODELS = (ENSEMBLE, PREPROCESSING, TARGET, POSTPROCESSING)


@dataclass(frozen=True)
class EmitTorchRepository(EmitRepository):
    """Write the models; `engine_settings` is EngineSettings as JSON, `vocab_size` the number of the target's logits."""

    serving: ServingSettings
    engine_settings: str
    has_draft: bool
    vocab_size: int = 0

    def emit(self, out: Path) -> None:
        """Write the models."""
        parameters: Parameters = {
            "tokenizer_dir": from_model(TOKENIZER),
            "gpt_model_path": from_model(checkpoint("target")),
            "draft_model_path": from_model(checkpoint("draft")) if self.has_draft else "",
            "engine_settings": self.engine_settings,
            "warmup": self.serving.warmup or None,
            "vocab_size": self.vocab_size,
            "max_input_len": json.loads(self.engine_settings)["max_input_len"],
        }
        for model in MODELS:
            emit_model(out, model, self.serving, parameters)


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
