# SPDX-License-Identifier: Apache-2.0
"""Emit the Triton repository of TensorRT-LLM's LLM API.

ensemble -> tensorrt_llm (1/model.yaml has the arguments of LLM)
preprocessing, postprocessing: for clients that call tensorrt_llm directly
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from trtspec.backends.steps.repository import EmitRepository
from trtspec.serving.triton.names import ENSEMBLE, POSTPROCESSING, PREPROCESSING, TARGET
from trtspec.serving.triton.repository_writer import Parameters, ServingSettings, emit_model
from trtspec.store.artifact_paths import TOKENIZER, from_model

MODELS = Path(__file__).with_name("models")
MODEL_YAML = Path(TARGET, "1", "model.yaml")


@dataclass(frozen=True)
class EmitLlmApiRepository(EmitRepository):
    """Write the models; `model_yaml` are the arguments of LLM as JSON, with paths relative to the model's directory.

    Lengths are in tokens. `gpu_ids` are the GPUs that are visible to the engine, all if empty. `greedy_only` rejects
    sampled requests.
    """

    serving: ServingSettings
    model_yaml: str
    max_input_len: int
    max_seq_len: int
    gpu_ids: tuple[int, ...] = ()
    greedy_only: bool = False

    def emit(self, out: Path) -> None:
        """Write the models."""
        parameters: Parameters = {
            "tokenizer_dir": from_model(TOKENIZER),
            "max_input_len": self.max_input_len,
            "max_seq_len": self.max_seq_len,
            "gpu_device_ids": ",".join(map(str, self.gpu_ids)),
            "greedy_only": self.greedy_only,
        }
        for model in (ENSEMBLE, PREPROCESSING, POSTPROCESSING):
            emit_model(out, model, self.serving, parameters)
        emit_model(out, TARGET, self.serving, parameters, source=MODELS / TARGET)
        document = json.loads(self.model_yaml, object_hook=_with_numbers)
        (out / MODEL_YAML).write_text(yaml.safe_dump(document, sort_keys=False), encoding="utf-8")


def _with_numbers(section: dict[str, Any]) -> dict[str | int, Any]:
    """Return a section with integer keys for JSON's string keys, as in a schedule."""
    return {int(key) if key.isdecimal() else key: value for key, value in section.items()}
