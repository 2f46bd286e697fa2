# SPDX-License-Identifier: Apache-2.0
"""What of this machine can be used: packages, server, GPU, disk. Probes; changes nothing."""

from __future__ import annotations

import os
import platform
import shutil
from importlib import metadata
from pathlib import Path

from trtspec.engines.tensorrt_llm.toolchain import BUILDER
from trtspec.interpreter import version_fault
from trtspec.kernels.build import find_libraries
from trtspec.paths import cache_dir, state_dir
from trtspec.triton.server import INSTALL_WHEEL, WHEEL, Finding, probe_server

LEAST_FREE_BYTES = 2 << 30
EXTRAS = {
    "embedded": ("torch", "transformers", "tokenizers"),
    "hub": ("huggingface_hub",),
    "triton": ("tritonclient", WHEEL),
}


def probe_machine() -> list[Finding]:
    """Return what a build, a measurement and a deployment need here, and whether it is there."""
    findings = [_python()]
    findings += [_package(package, extra) for extra, packages in EXTRAS.items() for package in packages]
    findings += probe_server()
    findings += [_folder("cache", cache_dir()), _folder("state", state_dir())]
    return [*findings, _gpu(), _kernels(), _tensorrt_llm(), _builder()]


def _python() -> Finding:
    detail = f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    fault = version_fault()
    return Finding("python", fault is None, detail, fault)


def _package(package: str, extra: str) -> Finding:
    try:
        return Finding(package, True, metadata.version(package))
    except metadata.PackageNotFoundError:
        hint = INSTALL_WHEEL if package == WHEEL else f"pip install 'trtspec[{extra}]'"
        return Finding(package, False, "not installed", hint)


def _folder(name: str, folder: Path) -> Finding:
    nearest = next(path for path in (folder, *folder.parents) if path.exists())
    variable = f"TRTSPEC_{name.upper()}"
    if not os.access(nearest, os.W_OK):
        return Finding(name, False, f"{folder} cannot be written", f"point {variable} at a directory that can")
    free = shutil.disk_usage(nearest).free
    detail = f"{folder}, {free / 2**30:.1f} GiB free"
    return Finding(name, free >= LEAST_FREE_BYTES, detail, f"make room, or point {variable} at another disk")


def _gpu() -> Finding:
    """Tell from the driver, without loading CUDA; a machine without a GPU lacks nothing that must be there."""
    devices = sorted(Path("/proc/driver/nvidia/gpus").glob("*"))
    return Finding("gpu", True, f"{len(devices)} NVIDIA GPUs" if devices else "none; the embedded engine uses the CPU")


def _kernels() -> Finding:
    """Tell whether drafts are verified by compiled kernels; a machine without them lacks only speed."""
    found = next(iter(find_libraries()), None)
    return Finding("kernels", True, str(found or "not compiled; torch verifies drafts (trtspec plugins build)"))


def _tensorrt_llm() -> Finding:
    try:
        return Finding("tensorrt-llm", True, metadata.version("tensorrt-llm"))
    except metadata.PackageNotFoundError:
        return Finding("tensorrt-llm", True, "not installed; the embedded engine runs the converted checkpoint")


def _builder() -> Finding:
    """Tell whether engines can be built here; a machine that builds none lacks nothing that must be there."""
    found = shutil.which(BUILDER)
    return Finding(BUILDER, True, found or "not on PATH; engines are built where it is, or in engine.build.image")
