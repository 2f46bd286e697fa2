# SPDX-License-Identifier: Apache-2.0
"""The artifact of TensorRT-LLM's LLM API: unconverted checkpoints, and a Triton repository whose model.yaml names them.

    ensemble -> tensorrt_llm (1/model.yaml has the arguments of LLM)
    preprocessing, postprocessing: for clients that call tensorrt_llm directly

`alone` starts trtllm-serve or Dynamo's worker with the same arguments
(NVIDIA/TensorRT-LLM:tensorrt_llm/commands/serve.py@v1.2.1, --extra_llm_api_options).
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from trtspec.backends.base import ArtifactPlan
from trtspec.backends.common.steps import companion_steps, copy_steps, gpu_record, served_path, serving_settings
from trtspec.backends.context import PlanContext
from trtspec.backends.llmapi.arguments import is_greedy_only, model_yaml
from trtspec.backends.llmapi.installed import validate_installed
from trtspec.backends.serving import StandaloneServer, with_absolute_paths
from trtspec.backends.steps.files import EmitRepository, read_models
from trtspec.serving.triton.names import ENSEMBLE, POSTPROCESSING, PREPROCESSING, TARGET
from trtspec.serving.triton.repository_writer import Parameters, ServingSettings, emit_model
from trtspec.store.artifact_paths import REPOSITORY, TOKENIZER, from_model
from trtspec.store.files import FileReader
from trtspec.store.step import Step

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


ELSEWHERE = ("model", "triton_config")  # on the command line, and only for Triton
FILE = "llm.yaml"


def alone(repository: Path, artifact: str) -> StandaloneServer:
    """Return the command line of TensorRT-LLM without Triton."""
    document = yaml.safe_load((repository / MODEL_YAML).read_text(encoding="utf-8"))
    document = with_absolute_paths(document, MODEL_YAML.parts[0], artifact)
    arguments = {key: value for key, value in document.items() if key not in ELSEWHERE}
    model, path = document["model"], f"/config/{FILE}"
    return StandaloneServer(
        framework="trtllm",
        serve=("trtllm-serve", model, "--host=0.0.0.0", f"--extra_llm_api_options={path}"),
        arguments=(f"--model-path={model}", f"--extra-engine-args={path}"),
        files={FILE: yaml.safe_dump(arguments, sort_keys=True)},
    )


def plan_artifact(context: PlanContext, reader: FileReader) -> ArtifactPlan:
    """Return the steps of the artifact."""
    document = model_yaml(context, served_path("target"), served_path("draft"))
    steps: dict[str, Step] = {**copy_steps(context, reader), **companion_steps(context, reader)}
    engine = context.resolved.engine
    steps[REPOSITORY] = EmitLlmApiRepository(
        read_models(MODELS),
        serving_settings(context),
        json.dumps(document),
        max_input_len=engine.max_input_len,
        max_seq_len=engine.max_seq_len,
        gpu_ids=tuple(context.resolved.serving.placement.target),
        greedy_only=is_greedy_only(context),
    )
    return ArtifactPlan(
        steps,
        tools={"tensorrt_llm": context.version},
        gpu=gpu_record(context),
        facts={"model_yaml": document},
        problems=lambda: validate_installed(document),
    )
