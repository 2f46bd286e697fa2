# SPDX-License-Identifier: Apache-2.0
"""FP8 weights in TensorRT-LLM's format: float8_e4m3 with one float32 scale per tensor or row; value = pattern * scale.

scale = amax / 448 over the whole tensor, not over a rank's part. q, k and v share the largest of their scales, and so
do an MLP's gate and fc, because the engine fuses them (tensorrt_llm/quantization/layers.py; NVIDIA/Model-Optimizer,
modelopt/torch/export/model_config.py). A weight is divided by its scale in float32 and rounded to nearest even.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trtspec.checkpoints.arithmetic import Arithmetic, compute_scales, divide
from trtspec.checkpoints.cast import Bits, e4m3_values, to_e4m3, to_floats
from trtspec.checkpoints.encode import ValueStats
from trtspec.checkpoints.safetensors import TensorInfo
from trtspec.checkpoints.stream import Transfer, TransferWorker


@dataclass(frozen=True)
class ScaleSlot:
    """The position of one float32 value: the offset in a rank's file."""

    rank: int
    offset: int


@dataclass(frozen=True)
class ScaleGroup:
    """Tensors that share a scale, and the positions of the scale."""

    transfers: tuple[Transfer, ...]
    scales: tuple[ScaleSlot, ...]


@dataclass(frozen=True)
class QuantizeTensors:
    """Quantizes each group to float8_e4m3 with one scale: one pass for amax, one for writing."""

    groups: tuple[ScaleGroup, ...]
    arithmetic: Arithmetic

    def run(self, worker: TransferWorker) -> None:
        for group in self.groups:
            scale = compute_scale(max(self._amax(worker, transfer.source) for transfer in group.transfers))
            for slot in group.scales:  # first: they are stored between the weights, and the file is hashed as it grows
                worker.put(slot.rank, slot.offset, np.array([scale], np.float32))
            for transfer in group.transfers:
                quantize = self.arithmetic.quantizer(transfer.source.dtype, scale)
                for first, bits in worker.chunks(transfer.source, parts=transfer.parts):
                    worker.write(transfer.destinations, first, quantize(bits))

    def _amax(self, worker: TransferWorker, source: TensorInfo) -> np.float32:
        """Return the largest finite magnitude of a tensor; report values that are not finite as flaws."""
        census = ValueStats(source, self.arithmetic)
        for _, bits in worker.chunks(source, last=False):
            census.add(bits)
        census.report(worker.flaws)
        return np.float32(to_floats(np.array([census.largest_bits], bits.dtype), source.dtype)[0])


@dataclass(frozen=True)
class QuantizeRows:
    """Quantizes tensors to float8_e4m3 with one scale per row; `scales` are the transfers of each tensor's scales."""

    transfers: tuple[Transfer, ...]
    scales: tuple[Transfer, ...]
    arithmetic: Arithmetic

    def run(self, worker: TransferWorker) -> None:
        """Quantize in one pass: a chunk consists of whole rows."""
        for transfer, scales in zip(self.transfers, self.scales, strict=True):
            census = ValueStats(transfer.source, self.arithmetic)
            all_scales = np.empty((transfer.num_rows, 1), np.float32)
            for first, bits in worker.chunks(transfer.source, parts=transfer.parts):
                encoded, by_row, counts = self.arithmetic.quantize_rows(bits, transfer.source.dtype)
                census.take(counts)
                worker.write(transfer.destinations, first, encoded)
                all_scales[first : first + len(bits)] = by_row
            worker.write(scales.destinations, 0, all_scales)  # in one write: small writes cost as much as large ones
            census.report(worker.flaws)


def compute_scale(largest: np.float32) -> np.float32:
    return np.float32(compute_scales(np.asarray(largest)))


def requantization_table(scale: np.float32, merged: np.float32) -> Bits:
    """Return the nearest pattern at scale `merged` for each of the 256 e4m3 patterns at `scale`."""
    return to_e4m3(divide(e4m3_values() * scale, merged))
