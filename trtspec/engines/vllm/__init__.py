# SPDX-License-Identifier: Apache-2.0
"""vLLM, behind Triton's vLLM backend: runs Hugging Face checkpoints as they are."""

from trtspec.engines.base import Backend
from trtspec.engines.sources import plan_source_memory
from trtspec.engines.vllm.objections import objections
from trtspec.engines.vllm.versions import releases

BACKEND = Backend(
    summary="vLLM, behind Triton's vLLM backend",
    package="vllm",
    memory=plan_source_memory,
    converts=False,
    versions=lambda: list(releases()),
    objections=objections,
)
