# SPDX-License-Identifier: Apache-2.0
"""What of Edge-LLM is on this machine, for `doctor`; a machine without it lacks nothing that must be there."""

from __future__ import annotations

from pathlib import Path

from trtspec.backends.common.console_script import script_versions
from trtspec.backends.edge_llm.arguments import EXPORT
from trtspec.backends.edge_llm.toolchain import ENVIRONMENT, NAMES, command_directory
from trtspec.core.doctor_check import Probe


def probes() -> list[Probe]:
    """Return them."""
    directory = command_directory()
    if not directory:
        return [Probe("tensorrt-edgellm", True, f"not on PATH, and {ENVIRONMENT} names no environment that has it")]
    found = script_versions(Path(directory) / EXPORT, NAMES)
    tensorrt = (
        f"TensorRT {found['tensorrt']}" if found["tensorrt"] else "no TensorRT: it exports, and builds no engines"
    )
    return [Probe("tensorrt-edgellm", True, f"{found['edge_llm']} in {directory}, {tensorrt}")]
