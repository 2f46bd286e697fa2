# SPDX-License-Identifier: Apache-2.0
"""Describe the machine of a measurement for the JSON documents."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import Any

from trtspec.core.gpus import detect_gpus


def describe_machine() -> dict[str, Any]:
    """Return the processor, the number of cores available to this process, the GPUs and the operating system."""
    return {
        "cpu": processor(),
        "cores": len(os.sched_getaffinity(0)),
        "gpus": [gpu.name for gpu in detect_gpus()],
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def processor() -> str:
    """Return the processor's name from /proc/cpuinfo, or the platform's; Linux reports none on Arm."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor() or "unknown")
