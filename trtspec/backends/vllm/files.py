# SPDX-License-Identifier: Apache-2.0
"""Where files of vLLM's model lie in a Triton repository."""

from __future__ import annotations

from pathlib import Path

MODEL_JSON = Path("vllm_model", "1", "model.json")  # what vLLM is started with
