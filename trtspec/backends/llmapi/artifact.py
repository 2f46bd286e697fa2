# SPDX-License-Identifier: Apache-2.0
"""The artifact of TensorRT-LLM's LLM API: unconverted checkpoints, and a Triton repository with paths to them.

model.yaml contains the arguments of LLM. `alone` returns the commands that start trtllm-serve or Dynamo's worker with
the same arguments (NVIDIA/TensorRT-LLM:tensorrt_llm/commands/serve.py@v1.2.1, --extra_llm_api_options).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
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
from trtspec.core.errors import DeployError, TrtspecError
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
# Forced acceptance: tensorrt_llm/_torch/speculative/interface.py. Versions before 1.3 parse an integer, and so does the
# sampler of drafters outside the target's engine (get_force_num_accepted_tokens); fractions are of pull 13569.
FORCE = "TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS"
TAKES_FRACTIONS, WHOLE_NUMBERS = (1, 3), ("NGram",)


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


def simulate(server: StandaloneServer, rates: Sequence[float], version: str) -> StandaloneServer:
    """Return the server with forced acceptance; TensorRT-LLM takes only the mean, without the target's own token.

    Raises DeployError for a fraction that the version or its decoding type does not read.
    """
    accepted = sum(rates)
    kind = yaml.safe_load(server.files[FILE])["speculative_config"]["decoding_type"]
    if accepted != int(accepted) and (minor_version(version) < TAKES_FRACTIONS or kind in WHOLE_NUMBERS):
        hint = "use a whole mean accepted length, such as 2 or 3"
        raise DeployError(f"TensorRT-LLM {version} forces whole numbers of tokens with {kind}", hint=hint)
    return replace(server, environment={FORCE: f"{accepted:.6g}"})


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
        simulate=simulate,
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
        structured_output=context.recipe.serving.structured_output,
        draft_len=context.draft_shape.max_depth,
    )
    facts = {"model_yaml": document}
    return plan_source_artifact(context, reader, PACKAGE, repository, facts, lambda: validate_installed(document))
