# SPDX-License-Identifier: Apache-2.0
"""The fallback for Triton's backend `vllm`, at the path where Triton looks for it."""

from trtspec.backends.vllm.stand_in import TritonPythonModel

__all__ = ["TritonPythonModel"]
