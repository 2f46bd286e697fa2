# SPDX-License-Identifier: Apache-2.0
"""Emit the Triton repository of SGLang.

ensemble -> tensorrt_llm (1/engine.json has the arguments of Engine)
preprocessing, postprocessing: for clients that call tensorrt_llm directly
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from trtspec.backends.steps.repository import EmitRepository
from trtspec.serving.triton.names import ENSEMBLE, POSTPROCESSING, PREPROCESSING, TARGET
from trtspec.serving.triton.repository_writer import Parameters, ServingSettings, emit_model
from trtspec.store.artifact_paths import TOKENIZER, from_model

MODELS = Path(__file__).with_name("models")
ENGINE_JSON = Path(TARGET, "1", "engine.json")
ADAPTIVE_JSON = ENGINE_JSON.with_name("adaptive.json")


@dataclass(frozen=True)
class EmitSglangRepository(EmitRepository):
    """Write the models; `engine_json` are the arguments of Engine as JSON, with paths relative to the model.

    `adaptive_json` is SGLang's document of a schedule, "" without one. Lengths are in tokens. `gpu_ids` are the GPUs
    that are visible to the engine, all if empty.
    """

    serving: ServingSettings
    engine_json: str
    adaptive_json: str
    max_input_len: int
    max_seq_len: int
    gpu_ids: tuple[int, ...] = ()

    def emit(self, out: Path) -> None:
        """Write the models."""
        parameters: Parameters = {
            "tokenizer_dir": from_model(TOKENIZER),
            "max_input_len": self.max_input_len,
            "max_seq_len": self.max_seq_len,
            "gpu_device_ids": ",".join(map(str, self.gpu_ids)),
        }
        for model in (ENSEMBLE, PREPROCESSING, POSTPROCESSING):
            emit_model(out, model, self.serving, parameters)
        emit_model(out, TARGET, self.serving, parameters, source=MODELS / TARGET)
        for path, text in ((ENGINE_JSON, self.engine_json), (ADAPTIVE_JSON, self.adaptive_json)):
            if text:
                (out / path).write_text(json.dumps(json.loads(text), indent=2) + "\n", encoding="utf-8")
