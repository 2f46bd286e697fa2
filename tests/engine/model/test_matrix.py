# SPDX-License-Identifier: Apache-2.0
"""Products with packed weights, compared with plain ones and with float64."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from trtspec.engine.model.layers import COUNTS, PACKED_FROM, PackedMatrix, make_matrix

SHAPES = ((640, 384), (384, 1024), (1 << 17, 1), (33, 7), (1, 5))
LEAST = torch.ones(PACKED_FROM // 256, 256)
PACKS = isinstance(make_matrix(LEAST), PackedMatrix)
needs_onednn = pytest.mark.skipif(not PACKS, reason="this machine has no oneDNN")


def drawn(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(dtype)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rows", [0, 1, 6, 17, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_product_with_bias_and_residual_equals_float64(shape: tuple[int, int], rows: int, dtype: torch.dtype) -> None:
    weight, bias = drawn(*shape, dtype=dtype), drawn(shape[0], dtype=dtype)
    inputs, residual = drawn(rows, shape[1], dtype=dtype), drawn(rows, shape[0], dtype=dtype)
    matrix, product = make_matrix(weight), inputs.double() @ weight.double().t()
    close = {"rtol": 0.02, "atol": 0.3} if dtype == torch.bfloat16 else {"rtol": 1e-4, "atol": 1e-4}
    before = residual.clone()
    for found, expected in (
        (matrix.product(inputs, None), product),
        (matrix.product(inputs, bias), product + bias.double()),
        (matrix.added(residual, inputs, None), product + residual.double()),
        (matrix.added(residual, inputs, bias), product + residual.double() + bias.double()),
    ):
        assert found.dtype == dtype
        torch.testing.assert_close(found.double(), expected, **close)
    assert torch.equal(residual, before)
    assert torch.equal(matrix.weight, weight)


@needs_onednn
@pytest.mark.parametrize("shape", [(640, 384), (2048, 384), (384, 1024), (1024, 1024)])
def test_row_result_is_bit_identical_for_any_number_of_rows(shape: tuple[int, int]) -> None:
    matrix, rows, residual = make_matrix(drawn(*shape)), drawn(300, shape[1]), drawn(300, shape[0])
    whole, added = matrix.product(rows, None), matrix.added(residual, rows, None)
    for count in (2, 3, 6, 9, 12, 32, 95, 128, 129, 299):
        assert torch.equal(matrix.product(rows[:count], None), whole[:count]), count
        assert torch.equal(matrix.added(residual[:count], rows[:count], None), added[:count]), count


@needs_onednn
def test_onednn_is_called_with_a_fixed_set_of_row_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix, asked, product = make_matrix(LEAST), set(), PackedMatrix._product

    def noted(self: PackedMatrix, rows: Tensor, bias: Tensor | None) -> Tensor:
        asked.add(len(rows))
        return product(self, rows, bias)

    monkeypatch.setattr(PackedMatrix, "_product", noted)
    for count in range(1, 400):
        assert matrix.product(drawn(count, 256), None).shape == (count, len(LEAST))
    assert asked == set(COUNTS)


@needs_onednn
def test_product_of_strided_rows_equals_that_of_contiguous_rows() -> None:
    matrix, wide = make_matrix(LEAST), drawn(6, 600)[:, 100:356]
    assert torch.equal(matrix.product(wide, None), matrix.product(wide.contiguous(), None))


@needs_onednn
def test_packing_depends_on_size_dtype_and_onednn() -> None:
    assert isinstance(make_matrix(LEAST), PackedMatrix)
    assert not isinstance(make_matrix(LEAST[1:]), PackedMatrix)
    assert not isinstance(make_matrix(LEAST.double()), PackedMatrix)
    assert not isinstance(make_matrix(LEAST.half()), PackedMatrix)
    with torch.backends.mkldnn.flags(enabled=False):
        assert not isinstance(make_matrix(LEAST), PackedMatrix)


def test_shared_unpacked_weight_is_not_copied() -> None:
    embedding = torch.ones(5, 3, dtype=torch.float64)
    matrix = make_matrix(embedding, is_shared=True)
    assert not isinstance(matrix, PackedMatrix)
    assert matrix.stored.data_ptr() == embedding.data_ptr()
