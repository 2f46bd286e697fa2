# SPDX-License-Identifier: Apache-2.0
"""Serve engines on the machine that they were built for, with one process or one per rank.

An engine requires the GPU, the driver and the versions that built it. Mismatches that would fail during loading, or
silently use other kernels, are rejected before a server starts.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from trtspec.backends.common.trtllm_versions.containers import container_images, is_release
from trtspec.backends.serving import Launch, ServingHooks
from trtspec.backends.tensorrt_llm.installed import installed_versions
from trtspec.backends.tensorrt_llm.placement import ENVIRONMENT, LAUNCH, no_pools
from trtspec.backends.tensorrt_llm.repository import MODELS, relocate
from trtspec.backends.tensorrt_llm.toolchain import BUILDER
from trtspec.core.errors import DeployError
from trtspec.core.files import read_bounded
from trtspec.core.gpus import Gpu, detect_gpus, find_gpu
from trtspec.serving.triton.names import ENGINE_MODELS
from trtspec.store.manifest import Manifest

MAX_LAUNCH_BYTES = 1 << 20
MOST_RANKS = 512


def check_machine(artifact: Path, manifest: Manifest) -> None:
    """Raise DeployError if this machine differs from the one that the artifact's engines were built for."""
    built = {**manifest.tools, **manifest.gpu}
    here = _machine(find_gpu(str(built.get("name"))))
    odd = [
        f"{key} {built.get(key)} when built, {value} here" for key, value in here.items() if _differs(key, built, value)
    ]
    if odd:
        hint = "build the recipe on this machine; converted checkpoints are reused"
        raise DeployError(
            f"the engines were built for another machine: {'; '.join(odd)}", where=str(artifact), hint=hint
        )


def _differs(key: str, built: dict[str, Any], value: object) -> bool:
    """Return whether a fact of this machine differs from the build's; candidates match the image's release."""
    recorded = built.get(key)
    return not is_release(value, str(recorded)) if key == "tensorrt_llm" else recorded != value


def read_launch(artifact: Path) -> Launch:
    """Return the launch configuration of an artifact."""
    path = artifact / LAUNCH
    try:
        return _parse_launch(json.loads(read_bounded(path, MAX_LAUNCH_BYTES)))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DeployError(f"cannot be read: {error}", where=str(path), hint="build it again") from None


def _parse_launch(document: dict[str, Any]) -> Launch:
    """Read only numbers and expected names from the document, since it is untrusted: nothing in it is executed."""
    world_size, models = document["world_size"], [model["name"] for model in document["models"]]
    if type(world_size) is not int or not 1 <= world_size <= MOST_RANKS:
        raise ValueError(f"world_size {world_size!r}")
    if not models or not set(models) <= set(ENGINE_MODELS.values()):
        raise ValueError(f"models {models!r}")
    environment = {key: str(document["environment"][key]) for key in ENVIRONMENT if key in document["environment"]}
    if any(value not in ("0", "1") for value in environment.values()):
        raise ValueError(f"environment {environment!r}")
    gpu_ids = [int(gpu_id) for model in document["models"] for gpu_id in model["gpu_device_ids"]]
    if not all(0 <= gpu_id < MOST_RANKS for gpu_id in gpu_ids):
        raise ValueError(f"gpu_device_ids {gpu_ids!r}")
    spawns = environment.get(ENVIRONMENT[1]) == "1"
    return Launch(world_size, tuple(models), environment, no_pools(gpu_ids) if spawns else ())


def _machine(wanted: Gpu) -> dict[str, Any]:
    """Return this machine's facts that decide whether an engine can be loaded, under the manifest's keys."""
    builder = shutil.which(BUILDER)
    if builder is None:
        hint = "deploy in the container with the TensorRT-LLM version that built the engines"
        raise DeployError(f"{BUILDER} is not on PATH, so TensorRT-LLM's version is unknown", hint=hint)
    tensorrt_llm, tensorrt = installed_versions(Path(builder))
    gpus = detect_gpus()
    fitting = [gpu for gpu in gpus if gpu.is_a(wanted)]
    gpu = next(iter([*fitting, *gpus]), None)
    return {
        "tensorrt_llm": tensorrt_llm,
        "tensorrt": tensorrt,
        "name": wanted.name if fitting else gpu.name if gpu else "no GPU",
        "sm": gpu.sm if gpu else 0,
        "driver": gpu.driver if gpu else "",
    }


SERVING = ServingHooks(
    triton_backend="tensorrtllm",
    check_machine=check_machine,
    stage=relocate,
    launch=read_launch,
    models=MODELS,
    images=container_images,
    # triton-inference-server/tensorrtllm_backend:README.md@0b9d7d5a
    kv_usage='nv_trt_llm_kv_cache_block_metrics{kv_cache_block_type="fraction"}',
)
