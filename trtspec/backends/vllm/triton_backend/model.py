# SPDX-License-Identifier: Apache-2.0
"""Stands in for Triton's backend `vllm`; the code is trtspec's, Triton looks for it here."""

from trtspec.backends.vllm.stand_in import TritonPythonModel

__all__ = ["TritonPythonModel"]
