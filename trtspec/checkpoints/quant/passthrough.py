# SPDX-License-Identifier: Apache-2.0
"""Encodings of tensors that are already FP8 in the source: patterns and scales are copied.

Patterns change only if the engine fuses tensors with different scales: they get the largest scale, and the tensors with
a smaller one are rounded again, as in TensorRT-LLM (tensorrt_llm/quantization/layers.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from trtspec.checkpoints.cast import Bits, Floats, to_floats
from trtspec.checkpoints.encode import DAMAGED
from trtspec.checkpoints.quant.fp8 import ScaleGroup, ScaleSlot, requantization_table
from trtspec.checkpoints.safetensors import TensorInfo
from trtspec.checkpoints.stream import Transfer, TransferWorker

NOT_A_NUMBER = 0x7F  # without the sign bit


@dataclass(frozen=True)
class CopyTensors:
    """Copies groups of FP8 tensors with the group's largest scale; `scales` are the source's, by weight name."""

    groups: tuple[ScaleGroup, ...]
    scales: Mapping[str, TensorInfo]

    def run(self, worker: TransferWorker) -> None:
        for group in self.groups:
            own = [read_scale(worker, self.scales[transfer.source.name]) for transfer in group.transfers]
            largest = max(own)
            _put(worker, group.scales, largest)  # first, as in QuantizeTensors
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
            for first, bits in worker.chunks(transfer.source, parts=transfer.parts):
                scales = to_floats(bits, transfer.source.dtype)
                _check(worker, transfer.source, scales)
                worker.write(transfer.destinations, first, scales)


@dataclass(frozen=True)
class MergedScale:
    """The largest of some scales, at least `least`, and its positions."""

    sources: tuple[TensorInfo, ...]
    slots: tuple[ScaleSlot, ...]
    least: float = 0.0


@dataclass(frozen=True)
class CopyScales:
    """Copies the scales of activations and of the KV cache; each source is read once even if it is used twice."""

    scales: tuple[MergedScale, ...]

    @property
    def sources(self) -> dict[str, TensorInfo]:
        """Return the source tensors by name."""
        return {source.name: source for scale in self.scales for source in scale.sources}

    def run(self, worker: TransferWorker) -> None:
        """Read all scales, then write all."""
        values = {name: read_scale(worker, source) for name, source in self.sources.items()}
        for scale in self.scales:
            largest = max(values[source.name] for source in scale.sources)
            _put(worker, scale.slots, max(largest, np.float32(scale.least)))


def read_scale(worker: TransferWorker, source: TensorInfo) -> np.float32:
    """Return a scale's value in float32; report it as a flaw if it is not positive and finite."""
    ((_, bits),) = worker.chunks(source)
    values = to_floats(bits, source.dtype).copy()  # the worker's buffer is used again
    is_scale = _check(worker, source, values)
    return np.float32(values[0, 0]) if is_scale else np.float32(1.0)  # output with a flaw is discarded


def _check(worker: TransferWorker, source: TensorInfo, scales: Floats) -> bool:
    bad = int(np.count_nonzero(~(np.isfinite(scales) & (scales > 0))))
    if bad:
        worker.flaws.add(source, f"{bad:,} of {scales.size:,} scales are not positive and finite")
    return not bad


def _move(worker: TransferWorker, transfer: Transfer, table: Bits | None = None) -> None:
    """Write a tensor's patterns, mapped by `table` if given."""
    source, nans = transfer.source, 0
    for first, bits in worker.chunks(source, parts=transfer.parts):
        nans += int(np.count_nonzero((bits & NOT_A_NUMBER) == NOT_A_NUMBER))
        worker.write(transfer.destinations, first, bits if table is None else np.take(table, bits))
    if nans and not worker.flaws.allow_nonfinite:
        worker.flaws.add(source, f"{nans:,} NaN values", DAMAGED)


def _put(worker: TransferWorker, slots: tuple[ScaleSlot, ...], value: np.float32) -> None:
    for slot in slots:
        worker.put(slot.rank, slot.offset, np.array([value], np.float32))
