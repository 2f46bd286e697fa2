# SPDX-License-Identifier: Apache-2.0
"""The model's code is trtspec's; Triton looks for it here."""

from trtspec.backends.edge_llm.served_model import TritonPythonModel

__all__ = ["TritonPythonModel"]
