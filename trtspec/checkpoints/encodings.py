# SPDX-License-Identifier: Apache-2.0
"""Encodings of a conversion's tensors: cast or copied, quantized to FP8, or taken from an FP8 source.

FP8 weights are float8_e4m3 with one float32 scale per tensor or row; value = pattern * scale. scale = amax / 448 over
the whole tensor, not over a rank's part. q, k and v share the largest of their scales, and so do an MLP's gate and fc,
because the engine fuses them (tensorrt_llm/quantization/layers.py; NVIDIA/Model-Optimizer,
modelopt/torch/export/model_config.py). A weight is divided by its scale in float32 and rounded to nearest even.

Patterns and scales of a source that is already FP8 are copied. If the engine fuses tensors with different scales, all
of them get the largest scale. Tensors with a smaller scale are then rounded again, as in TensorRT-LLM.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from trtspec.checkpoints.arithmetic import (
    Arithmetic,
    Bits,
    Counts,
    Floats,
    compute_scales,
    divide,
    e4m3_values,
    from_floats,
    to_e4m3,
    to_floats,
)
from trtspec.checkpoints.safetensors import ITEM_BYTES, TensorInfo
from trtspec.checkpoints.stream import ConversionIssues, Transfer, TransferWorker

DAMAGED = "the checkpoint is damaged; set allow_nonfinite: true in the recipe to convert it anyway"


@dataclass(frozen=True)
class Cast:
    """Converts tensors to `dtype` (BF16, F16 or F32), rounding to nearest even; `plus` is first added to each value."""

    transfers: tuple[Transfer, ...]
    dtype: str
    arithmetic: Arithmetic
    plus: float = 0.0

    def parts(self) -> list[Cast]:
        """Return encodings that do the same together, each for some rows of a tensor."""
        item = ITEM_BYTES[self.dtype]
        return [replace(self, transfers=(part,)) for transfer in self.transfers for part in transfer.split(item)]

    def run(self, worker: TransferWorker) -> None:
        """Convert and write the tensors; record an issue for values that are not finite or that overflow `dtype`."""
        for transfer in self.transfers:
            source, census = transfer.source, ValueStats(transfer.source, self.arithmetic)
            if source.dtype == self.dtype and not self.plus:
                worker.copy(transfer, census.add)
                census.report(worker.flaws, self.dtype)
                continue
            for first, bits in worker.chunks(source):
                census.add(bits)
                encoded = self._encode(bits, source.dtype)
                if source.dtype != self.dtype == "F16" or source.dtype == "F32":
                    census.add_encoded(encoded, self.dtype)
                worker.write(transfer.destinations, first, encoded)
            census.report(worker.flaws, self.dtype)

    def _encode(self, bits: Bits, dtype: str) -> Bits:
        if not self.plus:
            return self.arithmetic.cast(bits, dtype, self.dtype)
        return from_floats(to_floats(bits, dtype) + np.float32(self.plus), self.dtype)


@dataclass(frozen=True)
class Copy:
    """Copies integer tensors unchanged."""

    transfers: tuple[Transfer, ...]

    def run(self, worker: TransferWorker) -> None:
        for transfer in self.transfers:
            worker.copy(transfer, lambda bits: None)


class ValueStats:
    """Counts the NaN, infinite and overflowing values of a tensor, and tracks the pattern of its largest magnitude."""

    def __init__(self, source: TensorInfo, arithmetic: Arithmetic) -> None:
        self.source, self._arithmetic = source, arithmetic
        self.largest_bits = self._nans = self._infinities = self._overflows = 0

    def add(self, bits: Bits) -> None:
        self.take(self._arithmetic.count(bits, self.source.dtype))

    def take(self, counts: Counts) -> None:
        largest, nans, infinities = counts
        self.largest_bits = max(self.largest_bits, largest)
        self._nans += nans
        self._infinities += infinities

    def add_encoded(self, bits: Bits, dtype: str) -> None:
        """Count the infinities of a chunk after encoding; they exceed the chunk's own if values overflowed."""
        _, _, infinities = self._arithmetic.count(bits, dtype)
        self._overflows += infinities

    def report(self, flaws: ConversionIssues, dtype: str = "") -> None:
        """Report NaN and infinite values, unless `allow_nonfinite` is set, and values that overflow."""
        if (self._nans or self._infinities) and not flaws.allow_nonfinite:
            flaws.add(self.source, "{:,} NaN and {:,} infinite values", self._nans, self._infinities, hint=DAMAGED)
        if (count := self._overflows - self._infinities) > 0:
            hint = "set dtype: bfloat16 in the recipe"
            flaws.add(self.source, f"{{:,}} values are too large for {dtype}", count, hint=hint)


@dataclass(frozen=True)
class ScaleSlot:
    """Position of one float32 scale: its byte offset in a rank's file."""

    rank: int
    offset: int


def put_scale(worker: TransferWorker, slots: tuple[ScaleSlot, ...], value: np.float32) -> None:
    """Write a scale to all its positions, before its weights are written.

    Scales are stored between the weights of a file, and a file is hashed while it is written in sequence.
    """
    for slot in slots:
        worker.put(slot.rank, slot.offset, np.array([value], np.float32))


@dataclass(frozen=True)
class ScaleGroup:
    """Tensors that share one scale, and the positions of that scale."""

    transfers: tuple[Transfer, ...]
    scales: tuple[ScaleSlot, ...]


@dataclass(frozen=True)
class QuantizeTensors:
    """Quantizes each group to float8_e4m3 with one scale, in two passes: amax, then quantization."""

    groups: tuple[ScaleGroup, ...]
    arithmetic: Arithmetic

    def run(self, worker: TransferWorker) -> None:
        for group in self.groups:
            scale = compute_scale(max(self._amax(worker, transfer.source) for transfer in group.transfers))
            put_scale(worker, group.scales, scale)
            for transfer in group.transfers:
                quantize = self.arithmetic.quantizer(transfer.source.dtype, scale)
                for first, bits in worker.chunks(transfer.source):
                    worker.write(transfer.destinations, first, quantize(bits))

    def _amax(self, worker: TransferWorker, source: TensorInfo) -> np.float32:
        """Return the largest finite magnitude of a tensor; record an issue for values that are not finite."""
        census = ValueStats(source, self.arithmetic)
        for _, bits in worker.chunks(source, last=False):
            census.add(bits)
        census.report(worker.flaws)
        return np.float32(to_floats(np.array([census.largest_bits], bits.dtype), source.dtype)[0])


@dataclass(frozen=True)
class QuantizeRows:
    """Quantizes tensors to float8_e4m3 with one scale per row; `scales` are the transfers of the row scales."""

    transfers: tuple[Transfer, ...]
    scales: tuple[Transfer, ...]
    arithmetic: Arithmetic

    def parts(self) -> list[QuantizeRows]:
        """Return encodings that do the same together, each for some rows of a tensor."""
        pairs = zip(self.transfers, self.scales, strict=True)
        weights, scales = ITEM_BYTES["F8_E4M3"], ITEM_BYTES["F32"]
        parts = (zip(one.split(weights), other.split(scales), strict=True) for one, other in pairs)
        return [replace(self, transfers=(one,), scales=(other,)) for each in parts for one, other in each]

    def run(self, worker: TransferWorker) -> None:
        """Quantize in one pass, because each chunk consists of whole rows."""
        for transfer, scales in zip(self.transfers, self.scales, strict=True):
            census = ValueStats(transfer.source, self.arithmetic)
            all_scales = np.empty((transfer.num_rows, 1), np.float32)
            for first, bits in worker.chunks(transfer.source):
                encoded, by_row, counts = self.arithmetic.quantize_rows(bits, transfer.source.dtype)
                census.take(counts)
                worker.write(transfer.destinations, first, encoded)
                all_scales[first : first + len(bits)] = by_row
            worker.write(scales.destinations, 0, all_scales)  # in one write: small writes cost as much as large ones
            census.report(worker.flaws)


def compute_scale(largest: np.float32) -> np.float32:
    return np.float32(compute_scales(np.asarray(largest)))


def requantization_table(scale: np.float32, merged: np.float32) -> Bits:
    """Return the lookup table [256] that converts e4m3 patterns at scale `scale` to the nearest at scale `merged`."""
    return to_e4m3(divide(e4m3_values() * scale, merged))


NOT_A_NUMBER = 0x7F  # without the sign bit


@dataclass(frozen=True)
class CopyTensors:
    """Copies groups of FP8 tensors, requantizing those whose scale is not the largest of their group.

    `scales` maps weight names to the scale tensors of the source.
    """

    groups: tuple[ScaleGroup, ...]
    scales: Mapping[str, TensorInfo]

    def run(self, worker: TransferWorker) -> None:
        for group in self.groups:
            own = [read_scale(worker, self.scales[transfer.source.name]) for transfer in group.transfers]
            largest = max(own)
            put_scale(worker, group.scales, largest)
            for transfer, scale in zip(group.transfers, own, strict=True):
                _move(worker, transfer, None if scale == largest else requantization_table(scale, largest))


@dataclass(frozen=True)
class CopyRows:
    """Copies FP8 tensors and their row scales unchanged; scales are converted to float32."""

    transfers: tuple[Transfer, ...]
    scales: tuple[Transfer, ...]

    def run(self, worker: TransferWorker) -> None:
        for transfer in self.transfers:
            _move(worker, transfer)
        for transfer in self.scales:
            for first, bits in worker.chunks(transfer.source):
                scales = to_floats(bits, transfer.source.dtype)
                _check(worker, transfer.source, scales)
                worker.write(transfer.destinations, first, scales)


@dataclass(frozen=True)
class MergedScale:
    """A scale to write: the largest of the `sources`, at least `least`, and its positions."""

    sources: tuple[TensorInfo, ...]
    slots: tuple[ScaleSlot, ...]
    least: float = 0.0


@dataclass(frozen=True)
class CopyScales:
    """Copies the scales of activations and of the KV cache; each source is read once."""

    scales: tuple[MergedScale, ...]

    @property
    def sources(self) -> dict[str, TensorInfo]:
        return {source.name: source for scale in self.scales for source in scale.sources}

    def run(self, worker: TransferWorker) -> None:
        values = {name: read_scale(worker, source) for name, source in self.sources.items()}
        for scale in self.scales:
            largest = max(values[source.name] for source in scale.sources)
            put_scale(worker, scale.slots, max(largest, np.float32(scale.least)))


def read_scale(worker: TransferWorker, source: TensorInfo) -> np.float32:
    """Return a scale as float32; if it is not positive and finite, record an issue and return 1."""
    ((_, bits),) = worker.chunks(source)
    values = to_floats(bits, source.dtype).copy()  # the worker's buffer is used again
    is_scale = _check(worker, source, values)
    return np.float32(values[0, 0]) if is_scale else np.float32(1.0)  # output with a flaw is discarded


def _check(worker: TransferWorker, source: TensorInfo, scales: Floats) -> bool:
    bad = int(np.count_nonzero(~(np.isfinite(scales) & (scales > 0))))
    if bad:
        worker.flaws.add(source, "{:,} of {:,} scales are not positive and finite", bad, scales.size)
    return not bad


def _move(worker: TransferWorker, transfer: Transfer, table: Bits | None = None) -> None:
    """Copy a tensor's FP8 patterns, mapped through `table` if given; record an issue for NaN values."""
    source, nans = transfer.source, 0
    for first, bits in worker.chunks(source):
        nans += int(np.count_nonzero((bits & NOT_A_NUMBER) == NOT_A_NUMBER))
        worker.write(transfer.destinations, first, bits if table is None else np.take(table, bits))
    if nans and not worker.flaws.allow_nonfinite:
        worker.flaws.add(source, "{:,} NaN values", nans, hint=DAMAGED)
