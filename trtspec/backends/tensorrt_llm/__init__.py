# SPDX-License-Identifier: Apache-2.0
"""Backend for TensorRT-LLM engines, which are built by trtllm-build up to 1.2.1.

Importing this package starts no process and does not import TensorRT-LLM: planning needs only recipes, checkpoint
headers and data files.
"""

from __future__ import annotations

from functools import partial

from trtspec.backends.base import AutoSelection, Backend, Migration, deferred
from trtspec.backends.common.trtllm_versions import find_version_spec, minors_with, offer_installed, version_specs
from trtspec.backends.tensorrt_llm.placement import memory
from trtspec.backends.tensorrt_llm.rules import check
from trtspec.backends.tensorrt_llm.specs import modes, speculation_arguments
from trtspec.backends.tensorrt_llm.toolchain import probes
from trtspec.recipe.schema import Recipe

PACKAGE = "tensorrt_llm"


def migrate(migration: Migration, recipe: Recipe) -> None:
    spec = find_version_spec(migration.version)
    for option in recipe.engine.extra:
        if option not in spec.options:
            elsewhere = ", ".join(minors_with(option)) or "no supported one"
            migration.drop(f"engine.extra.{option}", f"not in trtllm-build {spec.minor}; versions with it: {elsewhere}")
    before = version_specs().get(".".join((recipe.engine.version or "").split(".")[:2]))
    for option in sorted(spec.options.keys() - (before.options.keys() if before else spec.options.keys())):
        migration.note("kept", f"engine.extra.{option}", f"new in {spec.minor}; its default is used")


def versions() -> list[str]:
    """Return the releases that include trtllm-build, newest last."""
    return [release.version for spec in version_specs().values() if spec.options for release in spec.releases]


BACKEND = Backend(
    summary="TensorRT engines, built for one GPU by one version",
    methods=modes,
    memory=memory,
    plan=deferred(f"{__name__}.artifact:plan_artifact"),
    builds_engines=True,
    knobs=frozenset({"schedule"}),
    warms=True,
    defaults=("trtspec", "nvidia"),
    package=PACKAGE,
    versions=versions,
    check=check,
    serving=deferred(f"{__name__}.artifact:serving"),
    auto=AutoSelection(rank=1, offer=partial(offer_installed, PACKAGE, modes, builds=True)),
    build_arguments=speculation_arguments,
    probes=probes,
    migrate=migrate,
)
