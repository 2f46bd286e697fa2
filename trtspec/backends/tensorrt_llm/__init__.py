# SPDX-License-Identifier: Apache-2.0
"""TensorRT-LLM engines, built by trtllm-build up to 1.2.1.

Importing this package runs nothing and does not import TensorRT-LLM: plans use recipes, checkpoint headers and data.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from trtspec.backends.base import ArtifactPlan, AutoSelection, Backend, BackendOffer, Migration
from trtspec.backends.common.trtllm_versions import find_version_spec, minors_with, version_specs
from trtspec.backends.context import PlanContext
from trtspec.backends.tensorrt_llm.memory import memory
from trtspec.backends.tensorrt_llm.rules import check
from trtspec.backends.tensorrt_llm.specs import MODES, build_arguments
from trtspec.backends.tensorrt_llm.toolchain import probes
from trtspec.core.installation import installed_version
from trtspec.recipe.schema import Recipe

if TYPE_CHECKING:
    from trtspec.backends.serving import ServingHooks
    from trtspec.store.files import FileReader


def migrate(migration: Migration, recipe: Recipe) -> None:
    """Migrate a recipe to another version with trtllm-build."""
    spec = find_version_spec(migration.version)
    for option in recipe.engine.extra:
        if option not in spec.options:
            elsewhere = ", ".join(minors_with(option)) or "no supported one"
            migration.drop(f"engine.extra.{option}", f"not in trtllm-build {spec.minor}; versions with it: {elsewhere}")
    before = version_specs().get(".".join((recipe.engine.version or "").split(".")[:2]))
    for option in sorted(spec.options.keys() - (before.options.keys() if before else spec.options.keys())):
        migration.note("kept", f"engine.extra.{option}", f"new in {spec.minor}; its default is used")


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
    from trtspec.backends.tensorrt_llm.repository import SERVING

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
