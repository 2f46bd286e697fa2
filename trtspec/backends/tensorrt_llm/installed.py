# SPDX-License-Identifier: Apache-2.0
"""Asks this machine which versions trtllm-build's interpreter has."""

from __future__ import annotations

from pathlib import Path

from trtspec.backends.common.console_script import script_versions

# TensorRT's wheels are named after CUDA's version too.
NAMES = {"tensorrt_llm": ("tensorrt_llm",), "tensorrt": ("tensorrt", "tensorrt_cu13", "tensorrt_cu12")}


def installed_versions(builder: Path) -> tuple[str | None, str | None]:
    """Return the versions of (TensorRT-LLM, TensorRT) that a console script runs with, None for what is not there."""
    found = script_versions(builder, NAMES)
    return found["tensorrt_llm"], found["tensorrt"]
