# SPDX-License-Identifier: Apache-2.0
"""FP8 weights as TensorRT-LLM reads them: float8_e4m3 with one float32 scale a tensor or a row, value = pattern *
scale.

scale = amax / 448 over the whole tensor, never a rank's part of it; q, k and v share the largest of theirs, and so do
an MLP's gate and fc, because the engine fuses them (tensorrt_llm/quantization/layers.py; NVIDIA/Model-Optimizer,
modelopt/torch/export/model_config.py). A weight is divided by its scale in float32 and rounded to nearest even.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trtspec.checkpoints.arithmetic import Arithmetic, divide, scales_of
from trtspec.checkpoints.cast import Bits, e4m3_values, to_e4m3, to_floats
from trtspec.checkpoints.encode import Census
from trtspec.checkpoints.safetensors import TensorInfo
from trtspec.checkpoints.stream import Transfer, Worker


@dataclass(frozen=True)
class Slot:
    """Where one float32 goes: the offset in the file of a rank."""

    rank: int
    offset: int


@dataclass(frozen=True)
class Group:
    """Tensors that share a scale, and where the scale goes."""

    transfers: tuple[Transfer, ...]
    scales: tuple[Slot, ...]


@dataclass(frozen=True)
class QuantizeTensors:
    """Each group's tensors become float8_e4m3 with the group's one scale: read once for amax, once to be written."""

    groups: tuple[Group, ...]
    arithmetic: Arithmetic

    def run(self, worker: Worker) -> None:
        """Quantize group by group."""
        for group in self.groups:
            scale = scale_of(max(self._amax(worker, transfer.source) for transfer in group.transfers))
            for slot in group.scales:  # first: they lie between the weights, and a file is hashed as it grows
                worker.put(slot.rank, slot.offset, np.array([scale], np.float32))
            for transfer in group.transfers:
                quantize = self.arithmetic.quantizer(transfer.source.dtype, scale)
                for first, bits in worker.chunks(transfer.source, parts=transfer.parts):
                    worker.write(transfer.destinations, first, quantize(bits))

    def _amax(self, worker: Worker, source: TensorInfo) -> np.float32:
        """Return the largest finite magnitude of a tensor; what is not finite is a flaw."""
        census = Census(source, self.arithmetic)
        for _, bits in worker.chunks(source, last=False):
            census.add(bits)
        census.report(worker.flaws)
        return np.float32(to_floats(np.array([census.largest_bits], bits.dtype), source.dtype)[0])


@dataclass(frozen=True)
class QuantizeRows:
    """Tensors become float8_e4m3 with a scale for each row; the scales of a tensor go to its `scales` transfers."""

    transfers: tuple[Transfer, ...]
    scales: tuple[Transfer, ...]
    arithmetic: Arithmetic

    def run(self, worker: Worker) -> None:
        """Quantize tensor by tensor, in one reading: a chunk has whole rows."""
        for transfer, scales in zip(self.transfers, self.scales, strict=True):
            census = Census(transfer.source, self.arithmetic)
            all_scales = np.empty((transfer.num_rows, 1), np.float32)
            for first, bits in worker.chunks(transfer.source, parts=transfer.parts):
                encoded, by_row, counts = self.arithmetic.quantize_rows(bits, transfer.source.dtype)
                census.take(counts)
                worker.write(transfer.destinations, first, encoded)
                all_scales[first : first + len(bits)] = by_row
            worker.write(
                scales.destinations, 0, all_scales
            )  # at once: a write of a few bytes costs what one of many does
            census.report(worker.flaws)


def scale_of(largest: np.float32) -> np.float32:
    """Return the scale for a largest magnitude."""
    return np.float32(scales_of(np.asarray(largest)))


def requantized(scale: np.float32, merged: np.float32) -> Bits:
    """Return for each of the 256 e4m3 patterns at `scale` the nearest one at the scale `merged`."""
    return to_e4m3(divide(e4m3_values() * scale, merged))
