# SPDX-License-Identifier: Apache-2.0
"""Weights in the fastest layout for products with a few rows: packed for oneDNN on a CPU, otherwise plain.

MKL, which torch.mm calls, takes three times as long for the six rows of a verify step as for one row, and rounds them
differently. oneDNN takes hardly longer, and the bits of a row do not depend on the number of other rows (except for
single rows of small matrices). The operators are those that torch's compiler emits for frozen weights; the torch
version is pinned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import pad

# Row counts used with oneDNN, which generates and caches code for each count and weight shape: 0.6 MB, 0.3 ms.
COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128)
_PADDED = [0, *(next(count for count in COUNTS if count >= rows) for rows in range(1, COUNTS[-1]))]
PACKED_FROM = 1 << 17  # weights; the overhead of some 10 us per oneDNN call does not pay off for smaller matrices


class WeightMatrix(Protocol):
    """A weight that maps rows [n, in] to [n, out]."""

    @property
    def weight(self) -> Tensor:
        """Return the weight [out, in], which may be a copy."""

    def product(self, rows: Tensor, bias: Tensor | None) -> Tensor:
        """Map rows [n, in] to [n, out]."""

    def added(self, residual: Tensor, rows: Tensor, bias: Tensor | None) -> Tensor:
        """Return residual [n, out] plus the product for rows [n, in]."""

    def taken(self, count: int) -> int:
        """Return the number of rows that a product of `count` rows computes; passing as many rows avoids a copy."""


@dataclass(frozen=True)
class PlainMatrix(WeightMatrix):
    """A plain `matrix` [in, out]."""

    matrix: Tensor

    @property
    def weight(self) -> Tensor:
        return self.matrix.t()

    def product(self, rows: Tensor, bias: Tensor | None) -> Tensor:
        return torch.mm(rows, self.matrix) if bias is None else torch.addmm(bias, rows, self.matrix)

    def added(self, residual: Tensor, rows: Tensor, bias: Tensor | None) -> Tensor:
        total = torch.addmm(residual, rows, self.matrix)
        return total if bias is None else total.add_(bias)

    def taken(self, count: int) -> int:
        return count


@dataclass(frozen=True)
class PackedMatrix(WeightMatrix):
    """A weight in oneDNN's layout, multiplied only by COUNTS rows: other numbers of rows are padded or split."""

    packed: Tensor

    @property
    def weight(self) -> Tensor:
        return self.packed.to_dense()

    def product(self, rows: Tensor, bias: Tensor | None) -> Tensor:
        count = len(rows)
        if count in COUNTS:
            return self._product(rows, bias)
        found = rows.new_empty((count, self.packed.shape[0]))
        for start in range(0, count, COUNTS[-1]):
            part = rows[start : start + COUNTS[-1]]
            padding = self.taken(len(part)) - len(part)
            found[start : start + len(part)] = self._product(pad(part, (0, 0, 0, padding)), bias)[: len(part)]
        return found

    def added(self, residual: Tensor, rows: Tensor, bias: Tensor | None) -> Tensor:
        if len(rows) not in COUNTS:
            return self.product(rows, bias).add_(residual)
        found: Tensor = torch.ops.mkldnn._linear_pointwise.binary(rows, residual, self.packed, bias, "add")
        return found

    def taken(self, count: int) -> int:
        whole, rest = divmod(count, COUNTS[-1])
        return whole * COUNTS[-1] + _PADDED[rest]

    def _product(self, rows: Tensor, bias: Tensor | None) -> Tensor:
        found: Tensor = torch.ops.mkldnn._linear_pointwise.default(rows, self.packed, bias, "none", [], "")
        return found


def make_matrix(weight: Tensor, *, is_shared: bool = False) -> WeightMatrix:
    """Return a weight [out, in] in the fastest layout on its device; without a copy on other devices if `is_shared`."""
    if weight.device.type == "cpu" and weight.numel() >= PACKED_FROM and weight.dtype in _packable():
        return PackedMatrix(torch.ops.mkldnn._reorder_linear_weight(weight.contiguous()))
    return PlainMatrix(weight.t() if is_shared else weight.t().contiguous())


def _packable() -> tuple[torch.dtype, ...]:
    onednn = torch.backends.mkldnn
    if not (onednn.enabled and onednn.is_available()):  # type: ignore[no-untyped-call]
        return ()
    in_bfloat16 = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return (torch.float32, torch.bfloat16) if in_bfloat16 else (torch.float32,)
