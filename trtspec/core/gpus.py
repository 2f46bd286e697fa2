# SPDX-License-Identifier: Apache-2.0
"""Table of GPU models by their names in recipes, and detection of this machine's GPUs.

Compute capabilities are from NVIDIA's CUDA GPU list. Memory sizes are from the data sheets, in GiB as the driver
reports them, rounded down. Rates are the peaks from data sheets and white papers; planning/prediction has the fraction
of the peaks that engines reach.
"""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass

from trtspec.core.errors import TrtspecError
from trtspec.core.processes import program_output
from trtspec.core.registry import did_you_mean

SMI = ("nvidia-smi", "--query-gpu=name,compute_cap,driver_version,memory.total", "--format=csv,noheader,nounits")
MEMORY_TOLERANCE_GIB = 2  # drivers report a little more or less than data sheets


@dataclass(frozen=True)
class Gpu:
    """A GPU model with the peak rates from `source`, a data sheet or white paper.

    `product` is the part of the driver's product name that identifies the model, and `sm` is the compute capability
    times ten. `bandwidth` (memory) and `link` (to another GPU of the machine, one direction) are in bytes/s. `flops`
    and `fp8_flops` are dense tensor-core rates in FLOP/s with 16-bit and 8-bit floats and 32-bit accumulation; 0 if
    unsupported.
    """

    name: str
    product: str
    sm: int
    memory_bytes: int
    bandwidth: float
    flops: float
    fp8_flops: float
    link: float
    source: str

    @property
    def has_fp8(self) -> bool:
        """Return True if the tensor cores support FP8 (Ada and later)."""
        return self.sm >= 89


def _gpu(
    name: str,
    product: str,
    sm: int,
    gib: int,
    gb_s: float,
    tflops: tuple[float, float],
    link_gb_s: float,
    source: str,
) -> Gpu:
    rates = (gb_s * 1e9, tflops[0] * 1e12, tflops[1] * 1e12, link_gb_s * 1e9)
    return Gpu(name, product, sm, gib << 30, *rates, source)


_DATA_CENTER = "https://www.nvidia.com/en-us/data-center"
_ADA = "https://images.nvidia.com/aem-dam/Solutions/geforce/ada/nvidia-ada-gpu-architecture.pdf"
_GA102 = "https://www.nvidia.com/content/PDF/nvidia-ampere-ga-102-gpu-architecture-whitepaper-v2.pdf"
_RTX_BLACKWELL = (
    "https://images.nvidia.com/aem-dam/Solutions/geforce/blackwell/nvidia-rtx-blackwell-gpu-architecture.pdf"
)
_ORIN = (
    "https://www.nvidia.com/content/dam/en-zz/Solutions/gtcf21/jetson-orin/nvidia-jetson-agx-orin-technical-brief.pdf"
)
_THOR = "https://developer.nvidia.com/blog/introducing-nvidia-jetson-thor-the-ultimate-platform-for-physical-ai/"
_RTX = "https://www.nvidia.com/en-us/products/workstations"

# Rates with 2:4 sparsity and NVLink's bidirectional rates are halved. GPUs without NVLink have the rate of PCIe.
GPUS = {
    gpu.name: gpu
    for gpu in (
        _gpu("v100", "V100", 70, 31, 900, (125, 0), 150, f"{_DATA_CENTER}/v100/"),
        _gpu("t4", "T4", 75, 14, 320, (65, 0), 16, f"{_DATA_CENTER}/tesla-t4/"),
        _gpu("a10", "A10", 86, 22, 600, (125, 0), 32, f"{_DATA_CENTER}/products/a10-gpu/"),
        _gpu("a30", "A30", 80, 23, 933, (165, 0), 100, f"{_DATA_CENTER}/products/a30-gpu/"),
        _gpu("a40", "A40", 86, 44, 696, (149.7, 0), 56, f"{_DATA_CENTER}/a40/"),
        _gpu("a100-40gb", "A100", 80, 39, 1555, (312, 0), 300, f"{_DATA_CENTER}/a100/"),
        _gpu("a100-80gb", "A100", 80, 79, 2039, (312, 0), 300, f"{_DATA_CENTER}/a100/"),
        _gpu("rtx3090", "RTX 3090", 86, 23, 936, (71, 0), 32, _GA102),
        _gpu("rtx4090", "RTX 4090", 89, 23, 1008, (165.2, 330.3), 32, _ADA),
        _gpu("l4", "L4", 89, 22, 300, (121, 242), 32, f"{_DATA_CENTER}/l4/"),
        _gpu("l40s", "L40S", 89, 44, 864, (362, 733), 32, f"{_DATA_CENTER}/l40s/"),
        _gpu("rtx5880", "RTX 5880", 89, 47, 960, (277, 554), 32, f"{_RTX}/rtx-5880/"),
        _gpu("h100", "H100", 90, 79, 3350, (989, 1979), 450, f"{_DATA_CENTER}/h100/"),
        _gpu("h200", "H200", 90, 139, 4800, (989, 1979), 450, f"{_DATA_CENTER}/h200/"),
        _gpu("gh200", "GH200", 90, 94, 4000, (990, 1979), 450, f"{_DATA_CENTER}/grace-hopper-superchip/"),
        _gpu("b200", "B200", 100, 178, 8000, (2250, 4500), 900, f"{_DATA_CENTER}/dgx-b200/"),
        _gpu("rtx5090", "RTX 5090", 120, 31, 1792, (209.5, 419), 64, _RTX_BLACKWELL),
        _gpu("rtxpro6000", "RTX PRO 6000", 120, 94, 1792, (503.8, 1007.6), 64, f"{_RTX}/professional-desktop-gpus/"),
        # memory is shared with the CPU and not reported by a driver: size of the largest module; one GPU per machine
        _gpu("jetson-orin", "Orin", 87, 61, 204.8, (42.5, 0), 0, _ORIN),
        _gpu("jetson-thor", "Thor", 110, 122, 273, (258, 517), 0, _THOR),
        _gpu("dgx-spark", "GB10", 121, 119, 273, (125, 250), 0, f"{_RTX}/dgx-spark/"),
    )
}


def find_gpu(name: str) -> Gpu:
    """Return the GPU model with a recipe's name, ignoring case; raise TrtspecError if the name is unknown."""
    gpu = GPUS.get(name.lower())
    if gpu is None:
        hint = did_you_mean(name.lower(), GPUS) or f"known: {', '.join(GPUS)}"
        raise TrtspecError(f"unknown GPU {name!r}", hint=hint)
    return gpu


@dataclass(frozen=True)
class DetectedGpu:
    """A GPU reported by nvidia-smi; `sm` is the compute capability times ten.

    `mebibytes` is 0 if the GPU shares the CPU's memory, because nvidia-smi does not report a size then.
    """

    name: str
    sm: int
    driver: str
    mebibytes: int

    def is_a(self, gpu: Gpu) -> bool:
        """Return True if this GPU is of model `gpu`: product name, compute capability and approximate memory match."""
        off = abs(self.mebibytes / 1024 - gpu.memory_bytes / 2**30)
        is_named = re.search(rf"\b{re.escape(gpu.product)}\b", self.name) is not None
        return is_named and self.sm == gpu.sm and (off <= MEMORY_TOLERANCE_GIB or not self.mebibytes)

    @property
    def kind(self) -> Gpu | None:
        """Return the matching model in GPUS, or None."""
        return next((gpu for gpu in GPUS.values() if self.is_a(gpu)), None)


def detect_gpus() -> list[DetectedGpu]:
    """Return this machine's GPUs in nvidia-smi's order; empty if nvidia-smi is not installed.

    Raises TrtspecError if nvidia-smi fails or its output has an unexpected form.
    """
    if not shutil.which(SMI[0]):
        return []
    lines = program_output(SMI, SMI[0], "repair the driver").splitlines()
    try:
        rows = [[part.strip() for part in line.split(",")] for line in lines if line.strip()]
        return [
            DetectedGpu(name, int(sm.replace(".", "")), driver, 0 if memory == "[N/A]" else int(memory))
            for name, sm, driver, memory in rows
        ]
    except ValueError:
        raise TrtspecError(f"printed unexpected output {lines[:4]}", where=SMI[0], hint="repair the driver") from None
