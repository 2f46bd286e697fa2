# SPDX-License-Identifier: Apache-2.0
"""FP8 simulation: rounds values to float8_e4m3 and back.

Values are rounded as in TensorRT-LLM and then multiplied by a GEMM of the compute dtype. A model's output therefore
equals the output of its FP8 engine up to the rounding of sums.
"""

from __future__ import annotations

import torch
from torch import Tensor

E4M3_MAX = 448.0
# TensorRT-LLM's defaults for per-row scales (tensorrt_llm/models/modeling_utils.py QuantConfig.clamp_val,
# tensorrt_llm/quantization/functional.py quantize_fp8_per_token): larger values are clamped, smaller scales are raised
CLAMP = 1200.0
LEAST_SCALE = 1.0 / (E4M3_MAX * 512.0)


def round_to_e4m3(values: Tensor, scale: Tensor) -> Tensor:
    """Return float8_e4m3(values / scale) * scale; `scale` is float32, and values beyond 448 * scale are clamped."""
    scaled = (values.float() / scale).clamp_(-E4M3_MAX, E4M3_MAX)
    return dequantize(scaled.to(torch.float8_e4m3fn), scale, values.dtype)


def round_rows_to_e4m3(values: Tensor) -> Tensor:
    """Return values [tokens, columns] rounded to float8_e4m3, with a scale per token from its largest value."""
    clamped = values.clamp(-CLAMP, CLAMP)
    largest = clamped.float().abs().amax(-1, keepdim=True)
    # divide by a tensor: for a Python number, a GPU multiplies by its reciprocal, which changes the scale's last bit
    most = largest.new_full((), E4M3_MAX)
    return round_to_e4m3(clamped, (largest / most).clamp_min_(LEAST_SCALE))


def dequantize(quantized: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the FP8 values times `scale` (float32, broadcast) in `dtype`."""
    return quantized.float().mul_(scale).to(dtype)
