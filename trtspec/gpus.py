# SPDX-License-Identifier: Apache-2.0
"""The GPUs that engines are built for, by the names that recipes use, and those that this machine has.

Compute capabilities: NVIDIA's CUDA GPU list. Memory: the data sheets, in GiB as the driver reports it, rounded down.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass

from trtspec.errors import TrtspecError
from trtspec.registry import did_you_mean
from trtspec.system import ask_program

SMI = ("nvidia-smi", "--query-gpu=name,compute_cap,driver_version,memory.total", "--format=csv,noheader,nounits")
MOST_GIB_OFF = 2  # drivers report a little more or less than data sheets


@dataclass(frozen=True)
class Gpu:
    """`sm` is the compute capability times ten, `product` part of the name that the driver gives it."""

    name: str
    product: str
    sm: int
    memory_bytes: int

    @property
    def has_fp8(self) -> bool:
        """Return whether its tensor cores multiply FP8: Ada and later."""
        return self.sm >= 89


def _gpu(name: str, product: str, sm: int, gib: int) -> Gpu:
    return Gpu(name, product, sm, gib << 30)


GPUS = {
    gpu.name: gpu
    for gpu in (
        _gpu("v100", "V100", 70, 31),
        _gpu("t4", "T4", 75, 14),
        _gpu("a10", "A10", 86, 22),
        _gpu("a30", "A30", 80, 23),
        _gpu("a40", "A40", 86, 44),
        _gpu("a100-40gb", "A100", 80, 39),
        _gpu("a100-80gb", "A100", 80, 79),
        _gpu("rtx3090", "RTX 3090", 86, 23),
        _gpu("rtx4090", "RTX 4090", 89, 23),
        _gpu("l4", "L4", 89, 22),
        _gpu("l40s", "L40S", 89, 44),
        _gpu("rtx5880", "RTX 5880", 89, 47),
        _gpu("h100", "H100", 90, 79),
        _gpu("h200", "H200", 90, 139),
        _gpu("gh200", "GH200", 90, 94),
        _gpu("b200", "B200", 100, 178),
        _gpu("rtx5090", "RTX 5090", 120, 31),
        _gpu("rtxpro6000", "RTX PRO 6000", 120, 94),
        # memory is shared with the CPU: the largest module's, and no driver reports it
        _gpu("jetson-orin", "Orin", 87, 61),
        _gpu("jetson-thor", "Thor", 110, 122),
        _gpu("dgx-spark", "GB10", 121, 119),
    )
}


def find_gpu(name: str) -> Gpu:
    """Return a GPU by a recipe's name for it, whatever the context; TrtspecError lists the known ones."""
    gpu = GPUS.get(name.lower())
    if gpu is None:
        hint = did_you_mean(name.lower(), GPUS) or f"known: {', '.join(GPUS)}"
        raise TrtspecError(f"nothing is known of the GPU {name!r}", hint=hint)
    return gpu


@dataclass(frozen=True)
class SeenGpu:
    """A GPU as nvidia-smi describes it; `sm` is the compute capability times ten.

    `mebibytes` is 0 where its memory is the CPU's, of which nvidia-smi says nothing.
    """

    name: str
    sm: int
    driver: str
    mebibytes: int

    def is_a(self, gpu: Gpu) -> bool:
        """Return whether it is of the kind; of one product there are several sizes."""
        off = abs(self.mebibytes / 1024 - gpu.memory_bytes / 2**30)
        is_named = re.search(rf"\b{re.escape(gpu.product)}\b", self.name) is not None
        return is_named and self.sm == gpu.sm and (off <= MOST_GIB_OFF or not self.mebibytes)

    @property
    def kind(self) -> Gpu | None:
        """Return which of the GPUs that are known it is, None for another."""
        return next((gpu for gpu in GPUS.values() if self.is_a(gpu)), None)


def seen_gpus() -> list[SeenGpu]:
    """Return the GPUs in PCI order, none where there is no driver."""
    if not shutil.which(SMI[0]):
        return []
    lines = ask_program(SMI, SMI[0], "repair the driver").splitlines()
    try:
        rows = [[part.strip() for part in line.split(",")] for line in lines if line.strip()]
        return [
            SeenGpu(name, int(sm.replace(".", "")), driver, 0 if memory == "[N/A]" else int(memory))
            for name, sm, driver, memory in rows
        ]
    except ValueError:
        raise TrtspecError(f"says {lines[:4]}, which are no GPUs", where=SMI[0], hint="repair the driver") from None
