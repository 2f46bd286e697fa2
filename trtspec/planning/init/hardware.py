# SPDX-License-Identifier: Apache-2.0
"""The GPUs for a proposed recipe: named on the command line, or detected on this machine."""

from __future__ import annotations

from dataclasses import dataclass

from trtspec.core.errors import TrtspecError
from trtspec.core.gpus import Gpu, detect_gpus, find_gpu

MOST_GPUS = 8  # assumed for a machine other than this one


@dataclass(frozen=True)
class InitHardware:
    """Number of GPUs of a kind, and the reason; `gpu` is None if unknown."""

    gpu: Gpu | None
    count: int
    why: str


def machine_for(name: str | None) -> InitHardware:
    """Return a machine with the named GPU, or this machine; TrtspecError for an unknown name."""
    if name is not None:
        return InitHardware(find_gpu(name), MOST_GPUS, "set by --gpu")
    try:
        seen = detect_gpus()
    except TrtspecError as error:
        return InitHardware(None, 0, f"{error.where} {error.message}; name one with --gpu")
    if not seen:
        return InitHardware(None, 0, "nvidia-smi shows none here; name one with --gpu, as h100")
    kind = seen[0].kind
    if kind is None:
        return InitHardware(None, 0, f"the {seen[0].name} here is unknown; name another with --gpu")
    count = sum(each.is_a(kind) for each in seen)
    return InitHardware(kind, count, f"nvidia-smi shows {count} of them here")
