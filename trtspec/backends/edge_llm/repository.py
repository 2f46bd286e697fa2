# SPDX-License-Identifier: Apache-2.0
"""The Triton repository of Edge-LLM, behind an ensemble with the tensors of NVIDIA's ensemble.

    ensemble: edge_llm (1/model.json has the start arguments of Edge-LLM)

Engines are served on the machine that built them, with Edge-LLM's Python API in a model of tritonserver.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from trtspec.backends.serving import ServingHooks
from trtspec.backends.steps.files import EmitRepository
from trtspec.core.errors import DeployError
from trtspec.core.gpus import detect_gpus, find_gpu
from trtspec.serving.triton.names import ENSEMBLE
from trtspec.serving.triton.repository_writer import Parameters, ServingSettings, emit_model
from trtspec.store.artifact import Manifest
from trtspec.store.artifact_paths import TOKENIZER, engine, from_model

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


def check_machine(artifact: Path, manifest: Manifest) -> None:
    """Raise DeployError if an artifact's engines are missing or were built for another machine."""
    if not (artifact / engine("target")).is_dir():
        hint = "build the recipe on the device that will serve it; sh reproduce.sh DIRECTORY builds only the engines"
        raise DeployError("the artifact contains only the inputs of engines", where=str(artifact), hint=hint)
    if not find_spec("tensorrt_edgellm"):
        hint = f"pip install 'tensorrt-edgellm[server]=={manifest.recipe.engine.version}' next to trtspec"
        raise DeployError("the Python package tensorrt_edgellm is not installed here", where=sys.executable, hint=hint)
    wanted = find_gpu(str(manifest.gpu.get("name")))
    if not any(gpu.is_a(wanted) and gpu.driver == manifest.gpu.get("driver") for gpu in detect_gpus()):
        here = ", ".join(f"{gpu.name} with driver {gpu.driver}" for gpu in detect_gpus()) or "no GPU"
        message = f"the engines were built for {wanted.name} with driver {manifest.gpu.get('driver')}, not for {here}"
        raise DeployError(message, where=str(artifact), hint="build the recipe on this machine")


SERVING = ServingHooks(
    check_machine=check_machine,
    models=MODELS,
    requirements=lambda version: (f"tensorrt-edgellm[server]=={version}",),
)
