# SPDX-License-Identifier: Apache-2.0
"""Emit the Triton repository of Edge-LLM, behind an ensemble with the tensors of NVIDIA's ensemble.

ensemble: edge_llm (1/model.json has the start arguments of Edge-LLM)
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from trtspec.backends.steps.repository import EmitRepository
from trtspec.serving.triton.names import ENSEMBLE
from trtspec.serving.triton.repository_writer import Parameters, ServingSettings, emit_model
from trtspec.store.artifact_paths import TOKENIZER, from_model

MODELS = Path(__file__).with_name("models")
MODEL = "edge_llm"
MODEL_JSON = Path(MODEL, "1", "model.json")


@dataclass(frozen=True)
class EmitEdgeRepository(EmitRepository):
    """Write the models; `model_json` is the document of `model_json`, `concurrency` the number of parallel requests."""

    model_json: str
    concurrency: int
    streaming: bool

    def emit(self, out: Path) -> None:
        """Write the models."""
        # Edge-LLM batches requests itself: its model gets single requests as they arrive
        unbatched = ServingSettings(max_batch_size=0, streaming=self.streaming)
        parameters: Parameters = {"tokenizer_dir": from_model(TOKENIZER), "concurrency": self.concurrency}
        for model in (ENSEMBLE, MODEL):
            emit_model(out, model, unbatched, parameters, source=MODELS / model)
        document = json.dumps(json.loads(self.model_json), indent=2)
        (out / MODEL_JSON).write_text(document + "\n", encoding="utf-8")
