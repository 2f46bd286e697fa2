# SPDX-License-Identifier: Apache-2.0
"""Memory-maps tensors of safetensors files as torch tensors; only accessed pages use memory."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from trtspec.checkpoints.safetensors import TensorInfo

TORCH_DTYPES = {
    "BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F8_E4M3": torch.float8_e4m3fn,
    "I64": torch.int64,
}  # fmt: skip


def map_tensor(tensor: TensorInfo) -> Tensor:
    """Return a tensor of one of TORCH_DTYPES on the CPU; writing to it does not change the file."""
    raw = np.memmap(tensor.file, np.uint8, "c", tensor.offset, tensor.nbytes)
    return torch.from_numpy(raw).view(TORCH_DTYPES[tensor.dtype]).view(tensor.shape)
