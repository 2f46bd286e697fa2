# SPDX-License-Identifier: Apache-2.0
"""TensorRT-LLM's LLM API: runs Hugging Face checkpoints, quantized ones too, on the PyTorch backend."""

from trtspec.backends.base import Backend
from trtspec.backends.trtllm_versions import contracts
from trtspec.backends.llmapi.check import objections
from trtspec.backends.sources import plan_source_memory


def _versions() -> list[str]:
    """Return every release that a contract names, candidates first: the default is the newest that was released."""
    known = [release.version for contract in contracts().values() for release in contract.releases]
    return sorted(known, key=lambda version: "rc" not in version)


BACKEND = Backend(
    summary="TensorRT-LLM's LLM API on its PyTorch backend",
    package="tensorrt_llm",
    memory=plan_source_memory,
    converts=False,
    versions=_versions,
    objections=objections,
)
