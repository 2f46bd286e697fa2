# SPDX-License-Identifier: Apache-2.0
"""Entry point of the substitute for Triton's backend `vllm`, at the path that Triton requires."""

from trtspec.backends.vllm.stand_in import TritonPythonModel

__all__ = ["TritonPythonModel"]
