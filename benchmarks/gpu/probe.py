# SPDX-License-Identifier: Apache-2.0
"""What this machine has of what the parts need, found without importing torch, which takes it seconds."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib import metadata, util
from pathlib import Path
from typing import Any

LEAST_TORCH = (2, 11)
TIMEOUT_S = 20
QUERY = ("--query-gpu=name,memory.total,compute_cap,driver_version", "--format=csv,noheader")
# what trtspec and its GPU tests import, beyond torch and the standard library
MODULES = ("numpy", "pydantic", "yaml", "filelock", "safetensors")


@dataclass(frozen=True)
class Machine:
    """The machine in words, and for each thing that it lacks, why."""

    gpus: list[str] = field(default_factory=list)
    torch: str = ""
    nvcc: str = ""
    python: str = platform.python_version()
    cores: int | None = os.cpu_count()
    lacks: dict[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return it as a document has it."""
        return asdict(self)

    def reason(self, needs: tuple[str, ...]) -> str:
        """Return why something that needs these cannot be run; "" where it can."""
        return "; ".join(self.lacks[need] for need in needs if need in self.lacks)


def probe(environment: Mapping[str, str], site: Path) -> Machine:
    """Return what is here, seen as a part sees it."""
    path = environment["PATH"]
    lacks: dict[str, str] = {}
    version = _version("torch", site)
    reasons = {"torch": _torch_reason(version), "packages": _modules_reason(site)}
    lacks |= {name: reason for name, reason in reasons.items() if reason}
    gpus = _lines(shutil.which("nvidia-smi", path=path), *QUERY)
    if not gpus:
        lacks["gpu"] = "nvidia-smi finds no GPU"
    nvcc = shutil.which("nvcc", path=path)
    if nvcc is None:
        lacks["nvcc"] = "no nvcc on the PATH, in $CUDA_HOME/bin or in /usr/local/cuda/bin"
    if shutil.which("compute-sanitizer", path=path) is None:
        lacks["compute-sanitizer"] = "no compute-sanitizer on the PATH, in $CUDA_HOME/bin or in /usr/local/cuda/bin"
    for module in ("pytest", "transformers"):
        if not _version(module, site):
            lacks[module] = f"{module} is not installed (bring it as a wheel)"
    release = [line for line in _lines(nvcc, "--version") if "release" in line]
    return Machine(gpus=gpus, torch=version, nvcc=release[0] if release else "", lacks=lacks)


def _torch_reason(version: str) -> str:
    least = ".".join(map(str, LEAST_TORCH))
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None:
        return f"torch is not installed; {least} or newer is needed"
    if tuple(map(int, numbers.groups())) < LEAST_TORCH:
        return f"torch is {version}; {least} or newer is needed"
    return f"torch is {version}, which is built without CUDA" if "+cpu" in version else ""


def _modules_reason(site: Path) -> str:
    missing = [name for name in MODULES if not (util.find_spec(name) or (site / name).exists())]
    return f"not installed (bring them as wheels): {', '.join(missing)}" if missing else ""


def _version(name: str, site: Path) -> str:
    """Return the version of a distribution, what was brought first; "" where there is none."""
    for found in metadata.distributions(name=name, path=[str(site)]):
        return found.version
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _lines(program: str | None, *arguments: str) -> list[str]:
    """Return what a program says, line by line; nothing where it is not there or fails."""
    if program is None:
        return []
    try:
        done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]
