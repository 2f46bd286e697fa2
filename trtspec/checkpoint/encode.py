# SPDX-License-Identifier: Apache-2.0
"""The plain encodings: weights as they are or cast, with every value looked at, and integers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from trtspec.checkpoint.cast import INFINITY, SIGNLESS, Bits, cast, from_floats, to_floats
from trtspec.checkpoint.safetensors import TensorInfo
from trtspec.checkpoint.stream import Flaws, Transfer, Worker

DAMAGED = "the checkpoint is damaged; allow_nonfinite: true in the recipe converts it as it is"


@dataclass(frozen=True)
class Cast:
    """Tensors become `dtype` (BF16, F16 or F32), each value, with `plus` added, rounded to nearest even."""

    transfers: tuple[Transfer, ...]
    dtype: str
    plus: float = 0.0

    def run(self, worker: Worker) -> None:
        """Encode; values that are not finite, or no longer in `dtype`, are flaws."""
        for transfer in self.transfers:
            source, census = transfer.source, Census(transfer.source)
            for first, bits in worker.chunks(source):
                census.add(bits)
                encoded = self._encode(bits, source.dtype)
                if source.dtype != self.dtype == "F16" or source.dtype == "F32":
                    census.add_encoded(encoded, self.dtype)
                worker.write(transfer.destinations, first, encoded)
            census.report(worker.flaws, self.dtype)

    def _encode(self, bits: Bits, dtype: str) -> Bits:
        if not self.plus:
            return cast(bits, dtype, self.dtype)
        return from_floats(to_floats(bits, dtype) + np.float32(self.plus), self.dtype)


@dataclass(frozen=True)
class Copy:
    """Tensors of integers stay as they are."""

    transfers: tuple[Transfer, ...]

    def run(self, worker: Worker) -> None:
        """Copy."""
        for transfer in self.transfers:
            for first, bits in worker.chunks(transfer.source):
                worker.write(transfer.destinations, first, bits)


class Census:
    """Counts what is wrong with a tensor's values, and finds the largest magnitude of the finite ones."""

    def __init__(self, source: TensorInfo) -> None:
        self.source = source
        self.nans = self.infinities = self._overflows = self._largest = 0
        self._mask, self._infinity = SIGNLESS[source.dtype], INFINITY[source.dtype]

    def add(self, bits: Bits) -> None:
        """Take in a chunk."""
        largest = largest_magnitude(bits)
        if largest >= self._infinity:
            magnitudes = bits & bits.dtype.type(self._mask)
            self.nans += int(np.count_nonzero(magnitudes > self._infinity))
            self.infinities += int(np.count_nonzero(magnitudes == self._infinity))
            largest = int(magnitudes.max(initial=0, where=magnitudes < self._infinity))
        self._largest = max(self._largest, largest)

    def add_encoded(self, bits: Bits, dtype: str) -> None:
        """Take in what became of the same chunk, to see what has overflowed."""
        if largest_magnitude(bits) >= INFINITY[dtype]:
            magnitudes = bits & bits.dtype.type(SIGNLESS[dtype])
            self._overflows += int(np.count_nonzero(magnitudes == INFINITY[dtype]))

    @property
    def largest_bits(self) -> int:
        """Return the pattern of the largest finite magnitude."""
        return self._largest

    def report(self, flaws: Flaws, dtype: str = "") -> None:
        """Note what is wrong; the caller allows values that are not finite, never finite ones that overflow."""
        if (self.nans or self.infinities) and not flaws.allow_nonfinite:
            flaws.add(self.source, f"{self.nans:,} NaN and {self.infinities:,} infinite values", DAMAGED)
        if (count := self._overflows - self.infinities) > 0:
            hint = "set dtype: bfloat16 in the recipe"
            flaws.add(self.source, f"{count:,} values are too large for {dtype}", hint)


def largest_magnitude(bits: Bits) -> int:
    """Return the largest pattern without its sign, which is that of the largest magnitude.

    Read as unsigned, negative values are above all others; read as signed, below: two maxima need no copy without
    signs.
    """
    if not bits.size:
        return 0
    sign = 1 << (8 * bits.itemsize - 1)
    unsigned, signed = int(bits.max()), int(bits.view(f"i{bits.itemsize}").max())
    return max(unsigned & (sign - 1) if unsigned & sign else 0, signed)
