# SPDX-License-Identifier: Apache-2.0
"""TensorRT-LLM engines, built by trtllm-build up to 1.2.1.

Importing this package runs nothing and does not import TensorRT-LLM: plans use recipes, checkpoint headers and data.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from trtspec.backends.artifact_plan import ArtifactPlan
from trtspec.backends.base import AutoSelection, Backend, BackendOffer
from trtspec.backends.common.trtllm_versions import version_specs
from trtspec.backends.context import PlanContext
from trtspec.backends.tensorrt_llm.memory import memory
from trtspec.backends.tensorrt_llm.migrate import migrate
from trtspec.backends.tensorrt_llm.modes import MODES, build_arguments
from trtspec.backends.tensorrt_llm.probes import probes
from trtspec.backends.tensorrt_llm.rules import check
from trtspec.core.processes import installed_version

if TYPE_CHECKING:
    from trtspec.backends.serving import ServingHooks
    from trtspec.store.files import FileReader

PACKAGE = "tensorrt_llm"


def versions() -> list[str]:
    """Return the releases with trtllm-build, newest last."""
    return [release.version for spec in version_specs().values() if spec.options for release in spec.releases]


def _methods() -> Mapping[str, str]:
    return MODES


def _plan(context: PlanContext, reader: FileReader) -> ArtifactPlan:
    from trtspec.backends.tensorrt_llm.plan import plan_artifact

    return plan_artifact(context, reader)


def _offer(method: str, gpu: str | None) -> BackendOffer:
    """Accept what the installed version can build; the last release with trtllm-build is 1.2.1 (pull 15918)."""
    installed = installed_version(PACKAGE)
    if not installed:
        return BackendOffer(False, "TensorRT-LLM is not installed here")
    if gpu is None:
        return BackendOffer(False, "TensorRT-LLM is installed, but the recipe does not set engine.gpu")
    if tuple(int(part) for part in installed.split(".")[:2]) >= (1, 3):
        return BackendOffer(False, f"TensorRT-LLM {installed} does not include trtllm-build")
    if method not in MODES:
        return BackendOffer(False, f"TensorRT-LLM {installed} is installed, but does not support the method")
    return BackendOffer(True, f"TensorRT-LLM {installed} is installed")


def _serving() -> ServingHooks:
    from trtspec.backends.tensorrt_llm.serve import SERVING

    return SERVING


BACKEND = Backend(
    summary="TensorRT engines, built for one GPU by one version",
    methods=_methods,
    memory=memory,
    plan=_plan,
    builds_engines=True,
    knobs=frozenset({"schedule"}),
    warms=True,
    defaults=("trtspec", "nvidia"),
    package=PACKAGE,
    versions=versions,
    check=check,
    serving=_serving,
    auto=AutoSelection(rank=1, offer=_offer),
    build_arguments=build_arguments,
    probes=probes,
    migrate=migrate,
)
