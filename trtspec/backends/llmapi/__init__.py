# SPDX-License-Identifier: Apache-2.0
"""TensorRT-LLM's LLM API: runs Hugging Face checkpoints, including quantized ones, on the PyTorch backend."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from trtspec.backends.base import ArtifactPlan, AutoSelection, Backend, BackendOffer
from trtspec.backends.common.memory import free_memory_limit, plan_source_memory
from trtspec.backends.common.trtllm_versions import version_specs
from trtspec.backends.context import PlanContext
from trtspec.backends.llmapi.arguments import KNOBS
from trtspec.backends.llmapi.check import check
from trtspec.backends.llmapi.migrate import migrate
from trtspec.core.installation import installed_version

if TYPE_CHECKING:
    from trtspec.backends.serving import ServingHooks
    from trtspec.store.files import FileReader

PACKAGE = "tensorrt_llm"


def _versions() -> list[str]:
    """Return every supported release, candidates first, so that the default is the newest final release."""
    releases = [release.version for spec in version_specs().values() for release in spec.releases]
    return sorted(releases, key=lambda version: "rc" not in version)


def _methods() -> Mapping[str, str]:
    """Return the union over versions; `check` rejects a method that the chosen version lacks."""
    methods = {name: kind.name for spec in version_specs().values() for name, kind in spec.api.methods.items()}
    return {"none": ""} | methods


def _plan(context: PlanContext, reader: FileReader) -> ArtifactPlan:
    from trtspec.backends.llmapi.artifact import plan_artifact

    return plan_artifact(context, reader)


def _serving() -> ServingHooks:
    from trtspec.backends.common.trtllm_versions import container_images
    from trtspec.backends.llmapi.artifact import MODELS, alone
    from trtspec.backends.llmapi.installed import check_installed
    from trtspec.backends.serving import ServingHooks

    return ServingHooks(check_machine=check_installed, models=MODELS, images=container_images, alone=alone)


def _offer(method: str, gpu: str | None) -> BackendOffer:
    installed = installed_version(PACKAGE)
    if not installed:
        return BackendOffer(False, "TensorRT-LLM is not installed here")
    if gpu is None:
        return BackendOffer(False, "TensorRT-LLM is installed, but the recipe does not set engine.gpu")
    if method not in _methods():
        return BackendOffer(False, f"TensorRT-LLM {installed} is installed, but does not support the method")
    return BackendOffer(True, f"TensorRT-LLM {installed} is installed")


BACKEND = Backend(
    summary="TensorRT-LLM's LLM API on its PyTorch backend",
    methods=_methods,
    memory=partial(plan_source_memory, limit=free_memory_limit),
    plan=_plan,
    converts=False,
    knobs=KNOBS,
    package=PACKAGE,
    versions=_versions,
    check=check,
    serving=_serving,
    auto=AutoSelection(rank=2, offer=_offer),
    migrate=migrate,
)
