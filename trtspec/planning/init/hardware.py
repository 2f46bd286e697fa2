# SPDX-License-Identifier: Apache-2.0
"""The GPUs that a recipe is proposed for: those that are named, or those that are here."""

from __future__ import annotations

from dataclasses import dataclass

from trtspec.core.errors import TrtspecError
from trtspec.core.gpus import Gpu, find_gpu, seen_gpus

MOST_GPUS = 8  # of a machine that is not this one


@dataclass(frozen=True)
class Machine:
    """How many GPUs of a kind there are, and how that is known; `gpu` is None where none can be named."""

    gpu: Gpu | None
    count: int
    why: str


def machine_for(name: str | None) -> Machine:
    """Return a machine with the GPU of that name, or this one; raises TrtspecError for a name that is unknown."""
    if name is not None:
        return Machine(find_gpu(name), MOST_GPUS, "as --gpu says")
    try:
        seen = seen_gpus()
    except TrtspecError as error:
        return Machine(None, 0, f"{error.where} {error.message}; name one with --gpu")
    if not seen:
        return Machine(None, 0, "there is none here, as far as nvidia-smi tells; name one with --gpu, as h100")
    kind = seen[0].kind
    if kind is None:
        return Machine(None, 0, f"nothing is known of the {seen[0].name} here; name another with --gpu")
    count = sum(each.is_a(kind) for each in seen)
    return Machine(kind, count, f"nvidia-smi shows {count} of them here")
