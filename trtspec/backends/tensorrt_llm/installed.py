# SPDX-License-Identifier: Apache-2.0
"""Find the package versions in trtllm-build's interpreter."""

from __future__ import annotations

from pathlib import Path

from trtspec.backends.common.console_script import script_versions

# The names of TensorRT's wheels may include CUDA's version.
NAMES = {"tensorrt_llm": ("tensorrt_llm",), "tensorrt": ("tensorrt", "tensorrt_cu13", "tensorrt_cu12")}


def installed_versions(builder: Path) -> tuple[str | None, str | None]:
    """Return the versions of (TensorRT-LLM, TensorRT) in a console script's interpreter, None if not installed."""
    found = script_versions(builder, NAMES)
    return found["tensorrt_llm"], found["tensorrt"]
