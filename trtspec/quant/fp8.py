# SPDX-License-Identifier: Apache-2.0
"""FP8 weights as TensorRT-LLM reads them: float8_e4m3 with one float32 scale a tensor or a row, value = pattern *
scale.

scale = amax / 448 over the whole tensor, never a rank's part of it; q, k and v share the largest of theirs, and so do
an MLP's gate and fc, because the engine fuses them (tensorrt_llm/quantization/layers.py; NVIDIA/Model-Optimizer,
modelopt/torch/export/model_config.py). A weight is divided by its scale in float32 and rounded to nearest even.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from trtspec.checkpoint.cast import E4M3_MAX, Bits, Floats, e4m3_values, every_value, to_e4m3, to_floats
from trtspec.checkpoint.encode import Census
from trtspec.checkpoint.safetensors import TensorInfo
from trtspec.checkpoint.stream import Transfer, Worker

# What zeros get, as from NVIDIA's exporter (modelopt, TensorQuantizer.export_amax), so that none is divided by zero.
SCALE_OF_ZEROS = np.float32(1.0)
# Rows quantized together: a few hundred KiB of float32, which the caches hold.
BLOCK_VALUES = 1 << 16


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

    def run(self, worker: Worker) -> None:
        """Quantize group by group."""
        for group in self.groups:
            scale = scale_of(max(amax(worker, transfer.source) for transfer in group.transfers))
            for transfer in group.transfers:
                self._quantize(worker, transfer, scale)
            for slot in group.scales:
                worker.put(slot.rank, slot.offset, np.array([scale], np.float32))

    @staticmethod
    def _quantize(worker: Worker, transfer: Transfer, scale: np.float32) -> None:
        source = transfer.source
        table = None if source.dtype == "F32" else to_e4m3(_divide(every_value(source.dtype), scale))
        encoded = np.empty(0, np.uint8)
        for first, bits in worker.chunks(source):
            if table is None:
                encoded = to_e4m3(_divide(bits.view(np.float32), scale))
            else:
                encoded = encoded if encoded.shape == bits.shape else np.empty(bits.shape, np.uint8)
                np.take(
                    table, bits, out=encoded, mode="clip"
                )  # every pattern has its place: "clip" only saves the check
            worker.write(transfer.destinations, first, encoded)


@dataclass(frozen=True)
class QuantizeRows:
    """Tensors become float8_e4m3 with a scale for each row; the scales of a tensor go to its `scales` transfers."""

    transfers: tuple[Transfer, ...]
    scales: tuple[Transfer, ...]

    def run(self, worker: Worker) -> None:
        """Quantize tensor by tensor, in one reading: a chunk has whole rows."""
        for transfer, scales in zip(self.transfers, self.scales, strict=True):
            census = Census(transfer.source)
            for first, bits in worker.chunks(transfer.source):
                census.add(bits)
                for begin, block in _blocks(bits):
                    values = to_floats(block, transfer.source.dtype)
                    by_row = row_scales(values)
                    worker.write(transfer.destinations, first + begin, to_e4m3(_divide(values, by_row)))
                    worker.write(scales.destinations, first + begin, by_row)
            census.report(worker.flaws)


def amax(worker: Worker, source: TensorInfo) -> np.float32:
    """Return the largest finite magnitude of a tensor; what is not finite is a flaw."""
    census = Census(source)
    for _, bits in worker.chunks(source, last=False):
        census.add(bits)
    census.report(worker.flaws)
    return np.float32(to_floats(np.array([census.largest_bits], bits.dtype), source.dtype)[0])


def scale_of(largest: np.float32) -> np.float32:
    """Return the scale for a largest magnitude."""
    return SCALE_OF_ZEROS if largest <= 0 else np.float32(largest / np.float32(E4M3_MAX))


def row_scales(values: Floats) -> Floats:
    """Return the scale of each row, [rows, 1], of values [rows, columns]."""
    largest = np.maximum(values.max(1, keepdims=True, initial=0), -values.min(1, keepdims=True, initial=0))
    if not np.isfinite(largest).all():
        largest = np.abs(values).max(1, keepdims=True, initial=0, where=np.isfinite(values))
    return np.where(largest > 0, largest / np.float32(E4M3_MAX), SCALE_OF_ZEROS).astype(np.float32)


def requantized(scale: np.float32, merged: np.float32) -> Bits:
    """Return for each of the 256 e4m3 patterns at `scale` the nearest one at the scale `merged`."""
    return to_e4m3(_divide(e4m3_values() * scale, merged))


def _divide(values: Floats, scale: np.float32 | Floats) -> Floats:
    with np.errstate(invalid="ignore", over="ignore"):  # of a table's 65,536 patterns few occur
        return values / scale


def _blocks(bits: Bits) -> Iterator[tuple[int, Bits]]:
    step = max(1, BLOCK_VALUES // max(1, bits.shape[1]))
    for begin in range(0, len(bits), step):
        yield begin, bits[begin : begin + step]
