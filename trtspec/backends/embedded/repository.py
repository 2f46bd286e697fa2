# SPDX-License-Identifier: Apache-2.0
"""The Triton repository of the torch engine: ensemble -> tensorrt_llm.

preprocessing and postprocessing are for clients that call tensorrt_llm directly.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from trtspec.backends.steps.repository import EmitRepository
from trtspec.serving.triton.names import ENSEMBLE, POSTPROCESSING, PREPROCESSING, TARGET
from trtspec.serving.triton.repository_writer import Parameters, ServingSettings, emit_model
from trtspec.store.artifact_paths import TOKENIZER, checkpoint, from_model

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
