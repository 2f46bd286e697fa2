# SPDX-License-Identifier: Apache-2.0
"""Entry point at the path that Triton requires; the model's code is in the trtspec package."""

from trtspec.backends.llmapi.served_model import TritonPythonModel

__all__ = ["TritonPythonModel"]
