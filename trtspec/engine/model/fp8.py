# SPDX-License-Identifier: Apache-2.0
"""What FP8 does to values: they go through float8_e4m3 and come back.

A simulation in the compute dtype: values are rounded as TensorRT-LLM rounds them, and then multiplied by a GEMM of the
compute dtype, so that a model says what its FP8 engine says up to the rounding of the sums.
"""

from __future__ import annotations

import torch
from torch import Tensor

E4M3_MAX = 448.0
# TensorRT-LLM's defaults for a row's own scale (tensorrt_llm/models/modeling_utils.py QuantConfig.clamp_val,
# tensorrt_llm/quantization/functional.py quantize_fp8_per_token): values beyond are cut off, smaller scales are raised
CLAMP = 1200.0
LEAST_SCALE = 1.0 / (E4M3_MAX * 512.0)


def through_e4m3(values: Tensor, scale: Tensor) -> Tensor:
    """Return float8_e4m3(values / scale) * scale; `scale` is float32 and what exceeds 448 of it is cut off."""
    scaled = (values.float() / scale).clamp_(-E4M3_MAX, E4M3_MAX)
    return dequantize(scaled.to(torch.float8_e4m3fn), scale, values.dtype)


def rows_through_e4m3(values: Tensor) -> Tensor:
    """Return values [tokens, columns] through float8_e4m3, each token at the scale of its largest value."""
    clamped = values.clamp(-CLAMP, CLAMP)
    largest = clamped.float().abs().amax(-1, keepdim=True)
    # by a tensor: where a number divides, a GPU multiplies by its reciprocal, and the scale has another last bit
    most = largest.new_full((), E4M3_MAX)
    return through_e4m3(clamped, (largest / most).clamp_min_(LEAST_SCALE))


def dequantize(quantized: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Return patterns times scale, which is float32 and broadcast, in `dtype`."""
    return quantized.float().mul_(scale).to(dtype)
