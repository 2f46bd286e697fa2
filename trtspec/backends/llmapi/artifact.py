# SPDX-License-Identifier: Apache-2.0
"""The artifact of TensorRT-LLM's LLM API: unconverted checkpoints, and a Triton repository with paths to them.

model.yaml contains the arguments of LLM. `alone` returns the commands that start trtllm-serve or Dynamo's worker with
the same arguments (NVIDIA/TensorRT-LLM:tensorrt_llm/commands/serve.py@v1.2.1, --extra_llm_api_options).
"""

from __future__ import annotations

from pathlib import Path

import yaml

from trtspec.backends.base import ArtifactPlan
from trtspec.backends.common.steps import SERVED_PATHS, plan_source_artifact, serving_settings, token_models
from trtspec.backends.common.trtllm_versions import container_images, minor_version
from trtspec.backends.context import PlanContext
from trtspec.backends.llmapi.arguments import is_greedy_only, model_yaml
from trtspec.backends.llmapi.installed import validate_installed
from trtspec.backends.llmapi.methods import find_method
from trtspec.backends.serving import ServingHooks, StandaloneServer, load_absolute, require_package
from trtspec.core.errors import TrtspecError
from trtspec.serving.triton.names import TARGET
from trtspec.store.artifact import Manifest
from trtspec.store.files import FileReader

MODELS = Path(__file__).with_name("models")
MODEL_YAML = Path(TARGET, "1", "model.yaml")
PACKAGE = "tensorrt_llm"
FILE = "llm.yaml"
MAX_TEXT_BYTES = 1 << 24
# First minor version with --served_model_name, with underscores as in all options of trtllm-serve
# (NVIDIA/TensorRT-LLM:tensorrt_llm/commands/serve.py). In earlier versions the name is the last part of the path.
NAMES_MODELS = (1, 3)


def check_installed(artifact: Path, manifest: Manifest) -> None:
    wanted = manifest.recipe.engine.version
    require_package(PACKAGE, f"pip install {PACKAGE}=={wanted}, or deploy in NVIDIA's container for it")


def alone(repository: Path, artifact: str, version: str) -> StandaloneServer:
    document = load_absolute(repository, MODEL_YAML, artifact)
    model, path = document.pop("model"), f"/config/{FILE}"
    document.pop("triton_config", None)
    return StandaloneServer(
        framework="trtllm",
        serve=("trtllm-serve", model, "--host=0.0.0.0", f"--extra_llm_api_options={path}"),
        arguments=(f"--model={model}", f"--extra-engine-args={path}"),
        files={FILE: yaml.safe_dump(document, sort_keys=True)},
        name_option="--served_model_name" if minor_version(version) >= NAMES_MODELS else "",
    )


def requirements(version: str) -> tuple[str, ...]:
    """Return the pip requirements for versions that no Triton image contains, which are all versions from 1.3 on."""
    return () if container_images(version) else (f"{PACKAGE}=={version}",)


def system_packages(version: str) -> tuple[str, ...]:
    """Return the Ubuntu packages of TensorRT-LLM's wheel (NVIDIA/TensorRT-LLM:docs/source/installation/linux.md)."""
    return ("libopenmpi-dev",) if requirements(version) else ()


def serving() -> ServingHooks:
    return ServingHooks(
        check_machine=check_installed,
        models=MODELS,
        images=container_images,
        requirements=requirements,
        system_packages=system_packages,
        alone=alone,
    )


def read_texts(context: PlanContext) -> dict[str, str]:
    """Return the content of the method's files by name; raise TrtspecError if one cannot be read as a small text."""
    found = {}
    for name, path in find_method(context.method_name).files(context).items():
        try:
            data = path.read_bytes() if path.stat().st_size <= MAX_TEXT_BYTES else None
            found[name] = data.decode() if data is not None else ""
        except (OSError, UnicodeDecodeError) as error:
            raise TrtspecError(f"cannot read {name}: {error}", where=str(path)) from None
        if data is None:
            raise TrtspecError(f"{name} has more than {MAX_TEXT_BYTES} bytes", where=str(path))
    return found


def plan_artifact(context: PlanContext, reader: FileReader) -> ArtifactPlan:
    engine, document = context.resolved.engine, model_yaml(context, *SERVED_PATHS)
    repository = token_models(
        MODELS,
        serving_settings(context),
        {MODEL_YAML.name: yaml.safe_dump(document, sort_keys=False), **read_texts(context)},
        max_input_len=engine.max_input_len,
        max_seq_len=engine.max_seq_len,
        gpu_ids=context.resolved.serving.placement.target,
        greedy_only=is_greedy_only(context),
    )
    facts = {"model_yaml": document}
    return plan_source_artifact(context, reader, PACKAGE, repository, facts, lambda: validate_installed(document))
