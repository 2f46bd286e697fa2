# SPDX-License-Identifier: Apache-2.0
"""The Triton repository of Edge-LLM, behind an ensemble with the tensors of NVIDIA's ensemble.

    ensemble: edge_llm (1/model.json has the start arguments of Edge-LLM)

Engines are served on the machine that built them, with Edge-LLM's Python API in a model of tritonserver.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtspec.backends.serving import ServingHooks, require_package
from trtspec.backends.steps.files import EmitModels, read_models
from trtspec.core.errors import DeployError
from trtspec.core.gpus import detect_gpus, find_gpu
from trtspec.serving.triton.names import ENSEMBLE
from trtspec.serving.triton.repository_writer import Parameters, ServingSettings
from trtspec.store.artifact import Manifest
from trtspec.store.artifact_paths import TOKENIZER, engine, from_model

MODELS = Path(__file__).with_name("models")
MODEL = "edge_llm"
MODEL_JSON = Path(MODEL, "1", "model.json")


def repository_step(document: Mapping[str, Any], concurrency: int, *, streaming: bool) -> EmitModels:
    """Return the step that emits the models; `document` is `model_json`, `concurrency` the number of parallel requests.

    Edge-LLM batches requests itself: its model gets single requests as they arrive.
    """
    unbatched = ServingSettings(max_batch_size=0, streaming=streaming)
    parameters: Parameters = {"tokenizer_dir": from_model(TOKENIZER), "concurrency": concurrency}
    documents = {str(MODEL_JSON): json.dumps(document, indent=2) + "\n"}
    return EmitModels(read_models(MODELS), unbatched, (ENSEMBLE, MODEL), parameters, documents, MODELS)


def check_machine(artifact: Path, manifest: Manifest) -> None:
    """Raise DeployError if an artifact's engines are missing or were built for another machine."""
    if not (artifact / engine("target")).is_dir():
        hint = "build the recipe on the device that will serve it; sh reproduce.sh DIRECTORY builds only the engines"
        raise DeployError("the artifact contains only the inputs of engines", where=str(artifact), hint=hint)
    hint = f"pip install 'tensorrt-edgellm[server]=={manifest.recipe.engine.version}' next to trtspec"
    require_package("tensorrt_edgellm", hint)
    wanted = find_gpu(str(manifest.gpu.get("name")))
    if not any(gpu.is_a(wanted) and gpu.driver == manifest.gpu.get("driver") for gpu in detect_gpus()):
        here = ", ".join(f"{gpu.name} with driver {gpu.driver}" for gpu in detect_gpus()) or "no GPU"
        message = f"the engines were built for {wanted.name} with driver {manifest.gpu.get('driver')}, not for {here}"
        raise DeployError(message, where=str(artifact), hint="build the recipe on this machine")


def serving() -> ServingHooks:
    return ServingHooks(
        check_machine=check_machine,
        models=MODELS,
        requirements=lambda version: (f"tensorrt-edgellm[server]=={version}",),
    )
