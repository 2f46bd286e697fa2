# SPDX-License-Identifier: Apache-2.0
"""Paths of vLLM's model in a Triton repository."""

from __future__ import annotations

from pathlib import Path

MODEL_JSON = Path("vllm_model", "1", "model.json")  # the start arguments of vLLM
