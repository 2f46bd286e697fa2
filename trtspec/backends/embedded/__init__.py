# SPDX-License-Identifier: Apache-2.0
"""The torch engine behind Triton's Python backend: runs converted checkpoints on any machine's CPU or GPU."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from trtspec.backends.base import AutoSelection, Backend, BackendOffer, deferred
from trtspec.backends.common.memory import plan_memory
from trtspec.backends.embedded.check import check
from trtspec.backends.serving import ServingHooks
from trtspec.core.installation import DoctorCheck, check_package
from trtspec.core.registry import extension_names
from trtspec.engine.settings import EXTENDED_ROPE_KINDS

PACKAGES = ("torch", "transformers", "tokenizers")


def probes() -> list[DoctorCheck]:
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


def _methods() -> Mapping[str, str]:
    """Return the methods for which the torch engine has a drafter, without importing their modules and torch."""
    return {name: name for name in extension_names("trtspec.methods", "drafter")}


BACKEND = Backend(
    summary="torch on this machine's CPU or GPU",
    methods=_methods,
    memory=plan_memory,
    plan=deferred(f"{__name__}.artifact:plan_artifact"),
    in_process=True,
    keeps_windows=True,
    stretches=EXTENDED_ROPE_KINDS,
    knobs=frozenset({"schedule", "confidence", "verify"}),
    warms=True,
    maps_vocabularies=lambda version, method: method == "draft_target",
    defaults=("trtspec", "nvidia", "model"),
    check=check,
    serving=lambda: ServingHooks(extra="embedded"),
    auto=AutoSelection(rank=99, offer=lambda method, gpu: BackendOffer(takes=True, why="")),
    probes=probes,
)
