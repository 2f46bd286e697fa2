# SPDX-License-Identifier: Apache-2.0
"""TensorRT-LLM's engines, built by trtllm-build up to 1.2.1: what they are told, what they take, where they run.

Nothing here runs anything or imports TensorRT-LLM: a plan is made of a recipe, checkpoints' headers and data.
"""

from __future__ import annotations

from trtspec.backends.base import Backend
from trtspec.backends.trtllm_versions import contracts
from trtspec.backends.tensorrt_llm.memory import memory
from trtspec.backends.tensorrt_llm.rules import objections


def versions() -> list[str]:
    """Return the releases that have trtllm-build, the newest last."""
    return [release.version for contract in contracts().values() if contract.options for release in contract.releases]


BACKEND = Backend(
    summary="TensorRT engines, built for one GPU by one version",
    package="tensorrt_llm",
    memory=memory,
    versions=versions,
    objections=objections,
)
