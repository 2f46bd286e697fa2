# SPDX-License-Identifier: Apache-2.0
"""TensorRT-LLM's LLM API: runs Hugging Face checkpoints, including quantized ones, on the PyTorch backend."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from trtspec.backends.base import AutoSelection, Backend, deferred, methods_of_releases
from trtspec.backends.common.memory import plan_source_memory
from trtspec.backends.common.trtllm_versions import offer_installed, version_specs
from trtspec.backends.llmapi.arguments import KNOBS
from trtspec.backends.llmapi.check import check
from trtspec.backends.llmapi.migrate import migrate

PACKAGE = "tensorrt_llm"


def _versions() -> list[str]:
    """Return every supported release, candidates first, so that the default is the newest final release."""
    releases = [release.version for spec in version_specs().values() for release in spec.releases]
    return sorted(releases, key=lambda version: "rc" not in version)


def _methods() -> Mapping[str, str]:
    apis = (spec.api for spec in version_specs().values())
    return methods_of_releases({ours: kind.name for ours, kind in api.methods.items()} for api in apis)


BACKEND = Backend(
    summary="TensorRT-LLM's LLM API on its PyTorch backend",
    methods=_methods,
    memory=partial(plan_source_memory, fraction_of="free"),
    plan=deferred(f"{__name__}.artifact:plan_artifact"),
    converts=False,
    knobs=KNOBS,
    package=PACKAGE,
    versions=_versions,
    check=check,
    serving=deferred(f"{__name__}.artifact:serving"),
    auto=AutoSelection(rank=2, offer=partial(offer_installed, PACKAGE, _methods)),
    migrate=migrate,
)
