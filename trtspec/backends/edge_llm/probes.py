# SPDX-License-Identifier: Apache-2.0
"""Edge-LLM's checks for `doctor`; a machine without Edge-LLM passes."""

from __future__ import annotations

from pathlib import Path

from trtspec.backends.common.console_script import script_versions
from trtspec.backends.edge_llm.arguments import EXPORT
from trtspec.backends.edge_llm.toolchain import ENVIRONMENT, NAMES, command_directory
from trtspec.core.doctor_check import DoctorCheck


def probes() -> list[DoctorCheck]:
    """Return the check of Edge-LLM's commands and of TensorRT."""
    directory = command_directory()
    if not directory:
        return [DoctorCheck("tensorrt-edgellm", True, f"not on PATH, and not in an environment set by {ENVIRONMENT}")]
    found = script_versions(Path(directory) / EXPORT, NAMES)
    tensorrt = (
        f"TensorRT {found['tensorrt']}" if found["tensorrt"] else "no TensorRT: it can export but not build engines"
    )
    return [DoctorCheck("tensorrt-edgellm", True, f"{found['edge_llm']} in {directory}, {tensorrt}")]
