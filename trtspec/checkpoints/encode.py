# SPDX-License-Identifier: Apache-2.0
"""The encodings without quantization: floating-point weights cast with all values checked, and integers copied."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trtspec.checkpoints.arithmetic import Arithmetic, Counts
from trtspec.checkpoints.cast import Bits, from_floats, to_floats
from trtspec.checkpoints.safetensors import TensorInfo
from trtspec.checkpoints.stream import ConversionIssues, Transfer, TransferWorker

DAMAGED = "the checkpoint is damaged; set allow_nonfinite: true in the recipe to convert it anyway"


@dataclass(frozen=True)
class Cast:
    """Converts tensors to `dtype` (BF16, F16 or F32): adds `plus` to each value and rounds to nearest even."""

    transfers: tuple[Transfer, ...]
    dtype: str
    arithmetic: Arithmetic
    plus: float = 0.0

    def run(self, worker: TransferWorker) -> None:
        """Encode the tensors; report values that are not finite or that overflow `dtype` as flaws."""
        for transfer in self.transfers:
            source, census = transfer.source, ValueStats(transfer.source, self.arithmetic)
            for first, bits in worker.chunks(source, parts=transfer.parts):
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
            for first, bits in worker.chunks(transfer.source, parts=transfer.parts):
                worker.write(transfer.destinations, first, bits)


class ValueStats:
    """Counts invalid values of a tensor; `largest_bits` is the pattern of the largest finite magnitude."""

    def __init__(self, source: TensorInfo, arithmetic: Arithmetic) -> None:
        self.source, self._arithmetic = source, arithmetic
        self.largest_bits = self._nans = self._infinities = self._overflows = 0

    def add(self, bits: Bits) -> None:
        """Count the values of a chunk."""
        self.take(self._arithmetic.count(bits, self.source.dtype))

    def take(self, counts: Counts) -> None:
        """Add the counts of a chunk."""
        largest, nans, infinities = counts
        self.largest_bits = max(self.largest_bits, largest)
        self._nans += nans
        self._infinities += infinities

    def add_encoded(self, bits: Bits, dtype: str) -> None:
        """Count the infinities of the same chunk after encoding, to detect overflow."""
        _, _, infinities = self._arithmetic.count(bits, dtype)
        self._overflows += infinities

    def report(self, flaws: ConversionIssues, dtype: str = "") -> None:
        """Report the flaws. The caller can allow values that are not finite, but not finite values that overflow."""
        if (self._nans or self._infinities) and not flaws.allow_nonfinite:
            flaws.add(self.source, f"{self._nans:,} NaN and {self._infinities:,} infinite values", DAMAGED)
        if (count := self._overflows - self._infinities) > 0:
            hint = "set dtype: bfloat16 in the recipe"
            flaws.add(self.source, f"{count:,} values are too large for {dtype}", hint)
