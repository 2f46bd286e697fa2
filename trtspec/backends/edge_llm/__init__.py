# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's TensorRT Edge-LLM: TensorRT engines for edge devices and related GPUs, without trtllm-build.

Its commands run in a separate environment; this package does not import it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from trtspec.backends.base import ArtifactPlan, Backend
from trtspec.backends.common.memory import plan_source_memory
from trtspec.backends.context import PlanContext
from trtspec.backends.edge_llm.check import check, migrate
from trtspec.backends.edge_llm.toolchain import probes
from trtspec.backends.edge_llm.versions import releases

if TYPE_CHECKING:
    from trtspec.backends.serving import ServingHooks
    from trtspec.store.files import FileReader


def _methods() -> Mapping[str, str]:
    """Return the union over releases; `check` rejects a method that the chosen release lacks."""
    methods = {ours: theirs for release in releases().values() for ours, theirs in release.methods.items()}
    return {"none": ""} | methods


def _plan(context: PlanContext, reader: FileReader) -> ArtifactPlan:
    from trtspec.backends.edge_llm.plan import plan_artifact

    return plan_artifact(context, reader)


def _serving() -> ServingHooks:
    from trtspec.backends.edge_llm.repository import SERVING

    return SERVING


BACKEND = Backend(
    summary="TensorRT engines of TensorRT Edge-LLM, for Jetson, DRIVE, DGX Spark and single GPUs",
    methods=_methods,
    parses=frozenset({"none", "eagle3", "mtp", "dflash", "dspark"}),
    memory=plan_source_memory,
    plan=_plan,
    converts=False,
    builds_engines=True,
    package="tensorrt_edgellm",
    versions=lambda: list(releases()),
    check=check,
    serving=_serving,
    probes=probes,
    migrate=migrate,
)
