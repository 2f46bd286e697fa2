# SPDX-License-Identifier: Apache-2.0
"""What of TensorRT-LLM is on this machine, for `doctor`; a machine that builds no engine lacks nothing."""

from __future__ import annotations

import shutil

from trtspec.backends.tensorrt_llm.toolchain import BUILDER
from trtspec.core.doctor_check import Probe
from trtspec.core.processes import installed_version


def probes() -> list[Probe]:
    """Return them."""
    installed = installed_version("tensorrt-llm")
    absent = "not installed; the torch engine runs the converted checkpoint"
    builder = shutil.which(BUILDER) or "not on PATH; engines are built where it is, or in engine.build.image"
    return [Probe("tensorrt-llm", True, installed or absent), Probe(BUILDER, True, builder)]
