# SPDX-License-Identifier: Apache-2.0
"""Backend for NVIDIA's TensorRT Edge-LLM: TensorRT engines for edge devices and related GPUs, without trtllm-build.

Edge-LLM's commands run in a separate environment. This package does not import Edge-LLM.
"""

from __future__ import annotations

from trtspec.backends.base import Backend, deferred, methods_of_releases
from trtspec.backends.common.memory import plan_source_memory
from trtspec.backends.edge_llm.check import check, migrate
from trtspec.backends.edge_llm.toolchain import probes, releases

BACKEND = Backend(
    summary="TensorRT engines of TensorRT Edge-LLM, for Jetson, DRIVE, DGX Spark and single GPUs",
    methods=lambda: methods_of_releases(each.methods for each in releases().values()),
    parses=frozenset({"none", "eagle3", "mtp", "gemma4_mtp", "dflash", "dspark"}),
    memory=plan_source_memory,
    plan=deferred(f"{__name__}.artifact:plan_artifact"),
    converts=False,
    builds_engines=True,
    package="tensorrt_edgellm",
    versions=lambda: list(releases()),
    nearest_versions=True,
    defaults=("trtspec", "model"),
    structured_output="always",
    check=check,
    rewritten=deferred(f"{__name__}.artifact:rewritten_files"),
    serving=deferred(f"{__name__}.artifact:serving"),
    probes=probes,
    migrate=migrate,
)
