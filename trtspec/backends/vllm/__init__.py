# SPDX-License-Identifier: Apache-2.0
"""vLLM, behind Triton's vLLM backend: runs Hugging Face checkpoints as they are."""

from trtspec.backends.base import Backend
from trtspec.backends.sources import plan_source_memory
from trtspec.backends.vllm.check import objections
from trtspec.backends.vllm.versions import releases

BACKEND = Backend(
    summary="vLLM, behind Triton's vLLM backend",
    package="vllm",
    memory=plan_source_memory,
    converts=False,
    versions=lambda: list(releases()),
    objections=objections,
)
