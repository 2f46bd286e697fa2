# SPDX-License-Identifier: Apache-2.0
"""The artifact of vLLM: unconverted checkpoints, and a Triton repository with the tensors of NVIDIA's ensemble.

    ensemble: sampling_parameters -> vllm_model (1/model.json has the start arguments of vLLM)

vLLM resolves relative paths from the server's working directory, so `stage` writes a copy with absolute paths. `alone`
returns the commands that start `vllm serve` or Dynamo's worker with the same arguments
(vllm-project/vllm:vllm/engine/arg_utils.py@v0.33.0, where each field of EngineArgs is an option of the same name).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from trtspec.backends.base import SHARED_MODELS, ArtifactPlan
from trtspec.backends.common.steps import (
    SERVED_PATHS,
    TEXT_INPUTS,
    EmitModels,
    plan_source_artifact,
    read_models,
)
from trtspec.backends.context import PlanContext
from trtspec.backends.serving import (
    FallbackBackend,
    MultiNode,
    ServingHooks,
    StandaloneServer,
    command_options,
    load_absolute,
    relocate,
)
from trtspec.backends.vllm import find_vllm
from trtspec.backends.vllm.arguments import model_json
from trtspec.backends.vllm.versions import having, releases
from trtspec.core.errors import DeployError
from trtspec.serving.triton.names import ENSEMBLE
from trtspec.serving.triton.repository_writer import CONFIG, ServingSettings
from trtspec.store.artifact_paths import TOKENIZER, from_model
from trtspec.store.files import FileReader

MODEL_JSON = Path("vllm_model", "1", "model.json")  # the start arguments of vLLM
MODELS, NAMES = Path(__file__).with_name("models"), (ENSEMBLE, "sampling_parameters", "vllm_model")
# vLLM batches requests itself, so its models receive single requests as they arrive
UNBATCHED = ServingSettings(max_batch_size=0)
FP32, INT32 = 11, 8  # of Triton's DataType
COUNTS = {  # type and dimension
    "acceptance_rate": (FP32, 1),
    "total_accepted_draft_tokens": (INT32, 1),
    "total_draft_tokens": (INT32, 1),
    "num_draft_steps": (INT32, 1),
    "accepted_by_position": (INT32, -1),
}
SPECULATION, RATES = "--speculative-config=", "synthetic_acceptance_rates"  # fields: config/speculative.py@v0.33.0
RAY = "ray start --disable-usage-stats"  # vllm-project/vllm:docs/serving/parallelism_scaling.md@v0.33.0


def alone(repository: Path, artifact: str, version: str) -> StandaloneServer:
    document = load_absolute(repository, MODEL_JSON, artifact)
    model = document.pop("model")
    arguments = command_options(document)
    return StandaloneServer(
        framework="vllm",
        serve=("vllm", "serve", model, *arguments),
        arguments=(f"--model={model}", *arguments),
    )


def simulate(server: StandaloneServer, rates: Sequence[float], version: str) -> StandaloneServer:
    """Return the server with forced acceptance, which vLLM calls synthetic rejection sampling."""
    if RATES not in releases()[version].fields:
        hint = having(lambda release: RATES in release.fields)
        raise DeployError(f"vLLM {version} does not simulate acceptance by position", hint=hint)
    at = next(number for number, word in enumerate(server.serve) if word.startswith(SPECULATION))
    forced = {"rejection_sample_method": "synthetic", RATES: [*rates]}
    document = json.loads(server.serve[at].removeprefix(SPECULATION)) | forced
    (option,) = command_options({"speculative_config": document})
    return replace(server, serve=(*server.serve[:at], option, *server.serve[at + 1 :]))


def stage(repository: Path, out: Path, artifact: str) -> None:
    """Copy an artifact's repository to `out` with absolute paths, also in vLLM's arguments."""
    relocate(repository, out, artifact)
    (out / MODEL_JSON).write_text(_dump(load_absolute(repository, MODEL_JSON, artifact)), encoding="utf-8")


def _dump(document: Mapping[str, Any]) -> str:
    return json.dumps(document, indent=2) + "\n"


def answer_counts(repository: Path) -> None:
    """Add output tensors for draft counts to a repository; Triton's own vLLM backend does not report them."""
    from trtspec.serving.triton.config import load_config, render_config

    for name in ("vllm_model", "ensemble"):
        path = repository / name / CONFIG
        config = load_config(path)
        for output, (kind, dim) in COUNTS.items():
            config.output.add(name=output, data_type=kind, dims=[dim])
        for step in config.ensemble_scheduling.step:
            if step.model_name == "vllm_model":
                step.output_map.update({output: output for output in COUNTS})
        path.write_text(render_config(config), encoding="utf-8")


def _stand_in() -> FallbackBackend:
    find_vllm()
    return FallbackBackend(Path(__file__).with_name("triton_backend"), answer_counts)


def _images(version: str) -> tuple[str, ...]:
    tags = releases()[version].triton if version in releases() else ()
    return tuple(f"nvcr.io/nvidia/tritonserver:{tag}-vllm-python-py3" for tag in reversed(tags))


def serving() -> ServingHooks:
    return ServingHooks(
        triton_backend="vllm",
        stand_in=_stand_in,
        stage=stage,
        models=MODELS,
        images=_images,
        # for the fallback backend
        requirements=lambda version: () if _images(version) else (f"vllm=={version}",),
        alone=alone,
        simulate=simulate,
        nodes=MultiNode(f"{RAY} --head --port=6379", f'{RAY} --block --address="$LWS_LEADER_ADDRESS:6379"'),
    )


def repository_step(document: Mapping[str, Any], defaults: str = UNBATCHED.defaults) -> EmitModels:
    """Return the step that emits the models; `document` is the content of model.json.

    `defaults` is `serving.defaults` of the recipe.
    """
    draft_len = document.get("speculative_config", {}).get("num_speculative_tokens", 0)
    parameters = {"tokenizer_dir": from_model(TOKENIZER), "draft_len": draft_len}
    documents = {str(MODEL_JSON): _dump(document)}
    settings = replace(UNBATCHED, defaults=defaults)
    shared = dict.fromkeys((ENSEMBLE, "sampling_parameters"), TEXT_INPUTS)
    return EmitModels(read_models(SHARED_MODELS, MODELS), settings, NAMES, parameters, documents, MODELS, shared)


def plan_artifact(context: PlanContext, reader: FileReader) -> ArtifactPlan:
    document = model_json(context, *SERVED_PATHS)
    repository = repository_step(document, context.recipe.serving.defaults)
    return plan_source_artifact(context, reader, "vllm", repository, {"model_json": document})
