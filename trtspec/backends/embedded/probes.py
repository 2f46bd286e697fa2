# SPDX-License-Identifier: Apache-2.0
"""What the torch engine needs of this machine, for `doctor`."""

from __future__ import annotations

from pathlib import Path

from trtspec.core.doctor_check import Probe, probe_package

PACKAGES = ("torch", "transformers", "tokenizers")


def probes() -> list[Probe]:
    """Return them."""
    return [*(probe_package(package, "pip install 'trtspec[embedded]'") for package in PACKAGES), _gpu(), _kernels()]


def _gpu() -> Probe:
    """Tell from the driver, without loading CUDA; a machine without a GPU lacks nothing that must be there."""
    devices = sorted(Path("/proc/driver/nvidia/gpus").glob("*"))
    return Probe("gpu", True, f"{len(devices)} NVIDIA GPUs" if devices else "none; the torch engine uses the CPU")


def _kernels() -> Probe:
    """Tell whether drafts are verified by compiled kernels; a machine without them lacks only speed."""
    from trtspec.kernels.build import find_libraries  # compilers' flags, which only this command needs

    found = next(iter(find_libraries()), None)
    return Probe("kernels", True, str(found or "not compiled; torch verifies drafts (trtspec plugins build)"))
