# SPDX-License-Identifier: Apache-2.0
"""TensorRT-LLM's checks for `doctor`; a machine without it passes."""

from __future__ import annotations

import shutil

from trtspec.backends.tensorrt_llm.toolchain import BUILDER
from trtspec.core.doctor_check import DoctorCheck
from trtspec.core.processes import installed_version


def probes() -> list[DoctorCheck]:
    """Return the checks of TensorRT-LLM and trtllm-build."""
    installed = installed_version("tensorrt-llm")
    absent = "not installed; the torch engine runs the converted checkpoint"
    builder = shutil.which(BUILDER) or "not on PATH; build engines on a machine that has it, or with engine.build.image"
    return [DoctorCheck("tensorrt-llm", True, installed or absent), DoctorCheck(BUILDER, True, builder)]
