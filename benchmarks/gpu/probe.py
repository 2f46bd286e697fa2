# SPDX-License-Identifier: Apache-2.0
"""Detect which requirements of the parts this machine meets, without importing torch, which takes seconds."""

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
# imports of trtspec and its GPU tests, beyond torch and the standard library
MODULES = ("numpy", "pydantic", "yaml", "filelock", "blake3", "safetensors")


@dataclass(frozen=True)
class Machine:
    """The machine's description, and the reason for each missing requirement."""

    gpus: list[str] = field(default_factory=list)
    torch: str = ""
    nvcc: str = ""
    python: str = platform.python_version()
    cores: int | None = os.cpu_count()
    lacks: dict[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON fields."""
        return asdict(self)

    def reason(self, needs: tuple[str, ...]) -> str:
        """Return why these requirements are not met, or ""."""
        return "; ".join(self.lacks[need] for need in needs if need in self.lacks)


def probe(environment: Mapping[str, str], site: Path) -> Machine:
    """Return the machine's properties in the environment of a part."""
    path = environment["PATH"]
    lacks: dict[str, str] = {}
    version = _version("torch", site)
    reasons = {"torch": _torch_reason(version), "packages": _modules_reason(site)}
    lacks |= {name: reason for name, reason in reasons.items() if reason}
    gpus = _lines(shutil.which("nvidia-smi", path=path), *QUERY)
    if not gpus:
        lacks["gpu"] = "nvidia-smi does not find a GPU"
    nvcc = shutil.which("nvcc", path=path)
    if nvcc is None:
        lacks["nvcc"] = "nvcc is not on PATH, in $CUDA_HOME/bin or in /usr/local/cuda/bin"
    if shutil.which("compute-sanitizer", path=path) is None:
        lacks["compute-sanitizer"] = "compute-sanitizer is not on PATH, in $CUDA_HOME/bin or in /usr/local/cuda/bin"
    for module in ("pytest", "transformers"):
        if not _version(module, site):
            lacks[module] = f"{module} is not installed (provide it as a wheel)"
    release = [line for line in _lines(nvcc, "--version") if "release" in line]
    return Machine(gpus=gpus, torch=version, nvcc=release[0] if release else "", lacks=lacks)


def _torch_reason(version: str) -> str:
    least = ".".join(map(str, LEAST_TORCH))
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None:
        return f"torch is not installed; {least} or newer is required"
    if tuple(map(int, numbers.groups())) < LEAST_TORCH:
        return f"torch is {version}; {least} or newer is required"
    return f"torch is {version}, which is built without CUDA" if "+cpu" in version else ""


def _modules_reason(site: Path) -> str:
    missing = [name for name in MODULES if not (util.find_spec(name) or (site / name).exists())]
    return f"not installed (provide them as wheels): {', '.join(missing)}" if missing else ""


def _version(name: str, site: Path) -> str:
    """Return the version of a distribution, preferring provided wheels; "" if not installed."""
    for found in metadata.distributions(name=name, path=[str(site)]):
        return found.version
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _lines(program: str | None, *arguments: str) -> list[str]:
    """Return the output lines of a program, empty if it is missing or fails."""
    if program is None:
        return []
    try:
        done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=TIMEOUT_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    return [line.strip() for line in done.stdout.splitlines() if line.strip()]
