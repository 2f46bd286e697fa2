# SPDX-License-Identifier: Apache-2.0
"""Serve Edge-LLM's engines on the machine that built them, with its Python API in a model of tritonserver."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

from trtspec.backends.edge_llm.repository import MODELS
from trtspec.backends.serving import ServingHooks
from trtspec.core.errors import DeployError
from trtspec.core.gpus import detect_gpus, find_gpu
from trtspec.store.artifact_paths import engine
from trtspec.store.manifest import Manifest


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
