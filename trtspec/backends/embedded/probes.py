# SPDX-License-Identifier: Apache-2.0
"""The torch engine's checks for `doctor`."""

from __future__ import annotations

from pathlib import Path

from trtspec.core.doctor_check import DoctorCheck, check_package

PACKAGES = ("torch", "transformers", "tokenizers")


def probes() -> list[DoctorCheck]:
    """Return the checks of packages, GPU and kernels."""
    return [*(check_package(package, "pip install 'trtspec[embedded]'") for package in PACKAGES), _gpu(), _kernels()]


def _gpu() -> DoctorCheck:
    """Count the GPUs of the driver without loading CUDA; a machine without a GPU passes."""
    devices = sorted(Path("/proc/driver/nvidia/gpus").glob("*"))
    return DoctorCheck("gpu", True, f"{len(devices)} NVIDIA GPUs" if devices else "none; the torch engine uses the CPU")


def _kernels() -> DoctorCheck:
    """Check whether compiled kernels verify drafts; a machine without them passes, because they only affect speed."""
    from trtspec.kernels.build import find_libraries  # imports the compilers' flags, which only this command needs

    found = next(iter(find_libraries()), None)
    return DoctorCheck("kernels", True, str(found or "not compiled; torch verifies drafts (trtspec plugins build)"))
