# SPDX-License-Identifier: Apache-2.0
"""The artifact of SGLang: unconverted checkpoints, and a Triton repository whose engine.json names them.

    ensemble -> tensorrt_llm (1/engine.json has the arguments of Engine)
    preprocessing, postprocessing: for clients that call tensorrt_llm directly

`alone` starts SGLang's own server or Dynamo's worker with the same arguments
(sgl-project/sglang:python/sglang/srt/server_args.py@v0.5.23, where an option has the name of its field).
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from trtspec.backends.base import ArtifactPlan
from trtspec.backends.common.steps import companion_steps, copy_steps, gpu_record, served_path, serving_settings
from trtspec.backends.context import PlanContext
from trtspec.backends.serving import StandaloneServer, options, with_absolute_paths
from trtspec.backends.sglang.arguments import adaptive_config, engine_arguments
from trtspec.backends.steps.files import EmitRepository, read_models
from trtspec.core.errors import DeployError
from trtspec.core.installation import installed_version
from trtspec.serving.triton.names import ENSEMBLE, POSTPROCESSING, PREPROCESSING, TARGET
from trtspec.serving.triton.repository_writer import Parameters, ServingSettings, emit_model
from trtspec.store.artifact import Manifest
from trtspec.store.artifact_paths import REPOSITORY, TOKENIZER, from_model
from trtspec.store.files import FileReader
from trtspec.store.step import Step

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


PACKAGE = "sglang"


def check_installed(artifact: Path, manifest: Manifest) -> None:
    """Raise DeployError if SGLang is missing or another version is installed."""
    wanted, found = manifest.recipe.engine.version, installed_version(PACKAGE)
    hint = f"pip install {PACKAGE}=={wanted}"
    if not find_spec(PACKAGE):
        raise DeployError(f"the Python package {PACKAGE} is not installed here", where=sys.executable, hint=hint)
    if found and found != wanted:
        message = f"SGLang {found} is installed, but the recipe was checked for {wanted}"
        raise DeployError(message, where=sys.executable, hint=f"{hint}, or build with --set engine.version={found}")


TOKENS_ALONE = "skip_tokenizer_init"  # set for Triton, whose models tokenize; here the engine does


def alone(repository: Path, artifact: str) -> StandaloneServer:
    """Return the command line of SGLang without Triton."""
    document = json.loads((repository / ENGINE_JSON).read_text(encoding="utf-8"))
    document = with_absolute_paths(document, ENGINE_JSON.parts[0], artifact)
    arguments = options({key: value for key, value in document.items() if key != TOKENS_ALONE})
    return StandaloneServer(
        framework="sglang",
        serve=("python3", "-m", "sglang.launch_server", "--host=0.0.0.0", *arguments),
        arguments=arguments,
    )


def plan_artifact(context: PlanContext, reader: FileReader) -> ArtifactPlan:
    """Return the steps of the artifact."""
    document = engine_arguments(context, served_path("target"), served_path("draft"))
    adaptive, engine = adaptive_config(context), context.resolved.engine
    steps: dict[str, Step] = {**copy_steps(context, reader), **companion_steps(context, reader)}
    steps[REPOSITORY] = EmitSglangRepository(
        read_models(MODELS),
        serving_settings(context),
        json.dumps(document),
        json.dumps(adaptive) if adaptive else "",
        max_input_len=engine.max_input_len,
        max_seq_len=engine.max_seq_len,
        gpu_ids=tuple(context.resolved.serving.placement.target),
    )
    facts = {"engine_json": document} | ({"adaptive_json": adaptive} if adaptive else {})
    return ArtifactPlan(steps, tools={"sglang": context.version}, gpu=gpu_record(context), facts=facts)
