# SPDX-License-Identifier: Apache-2.0
"""Describe the machine of a benchmark."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

import numpy as np

from trtspec.core.processes import program_output


def environment() -> dict[str, Any]:
    """Return the processor, threads and versions."""
    import torch

    return {
        "cpu": cpu_name(),
        "cores": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


def commit() -> str:
    """Return the checked-out commit, with a plus sign if the code has uncommitted changes."""
    root, code = Path(__file__).parents[1], ("trtspec", "benchmarks/*.py", "tests")
    said = [("rev-parse", "--short", "HEAD"), ("status", "--porcelain", "--", *code)]
    head, changed = (program_output(("git", *words), str(root), "run it in a checkout", str(root)) for words in said)
    return head.strip() + "+" * bool(changed)


def cpu_name() -> str:
    """Return the processor's name from Linux."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())
