# SPDX-License-Identifier: Apache-2.0
"""torch devices and dtypes, padded and memory-mapped tensors, and the saved state of interrupted computations.

A saved state is one file, replaced atomically after its bytes are synced to disk.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trtspec.checkpoints.safetensors import TensorInfo
from trtspec.checkpoints.trtllm import DTYPES, TrtllmCheckpoint
from trtspec.core.errors import TrtspecError
from trtspec.core.files import fsync_path, private_file

TORCH_DTYPES = {
    "BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32, "F8_E4M3": torch.float8_e4m3fn,
    "I64": torch.int64,
}  # fmt: skip


def map_tensor(tensor: TensorInfo) -> Tensor:
    """Memory-map a stored tensor of one of TORCH_DTYPES on the CPU; writing to it does not change the file."""
    raw = np.memmap(tensor.file, np.uint8, "c", tensor.offset, tensor.nbytes)
    return torch.from_numpy(raw).view(TORCH_DTYPES[tensor.dtype]).view(tensor.shape)


def pad_rows(rows: Sequence[Sequence[int]], device: torch.device, width: int = 0, fill: int = 0) -> Tensor:
    """Return rows of integers as a tensor [rows, longest row or `width`], with `fill` after the shorter ones."""
    width = max(width, *map(len, rows))
    return torch.tensor([[*row, *[fill] * (width - len(row))] for row in rows], dtype=torch.int64, device=device)


def choose_device(name: str) -> torch.device:
    """Return the device for "auto" (CUDA if available), "cuda" or "cpu"; raise TrtspecError if CUDA is unavailable."""
    if name == "cuda" and not torch.cuda.is_available():
        raise TrtspecError("device cuda is not available on this machine", hint="use device auto or cpu")
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    if name == "cuda":
        # torch prefers cuDNN's attention on Hopper and Blackwell. cuDNN builds a new plan for every key length
        # (pytorch/pytorch 155958), and the key length changes with every decode step.
        torch.backends.cuda.enable_cudnn_sdp(False)
    return torch.device(name)


def compute_dtype(name: str, device: torch.device, checkpoint: TrtllmCheckpoint) -> torch.dtype:
    """Return the compute dtype called `name`; "auto" depends on the device and the checkpoint's quantization."""
    if name != "auto":
        return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[name]
    if device.type != "cpu":
        return TORCH_DTYPES[DTYPES[checkpoint.config.dtype]]
    # Rounding to FP8 amplifies a difference of one float32 ulp (such as between batches of one row and six) to a step
    # of e4m3. In float64 the text with and without speculation is the same.
    quantized = checkpoint.quantization.algo or checkpoint.quantization.kv_cache_algo
    # At batch 1 float32 is exact to 1e-6 and faster than bf16 on the CPUs that were measured
    # (benchmarks/experiments/torch-engine-cpu.md).
    return torch.float64 if quantized else torch.float32


def save_resume_state(path: Path, state: Mapping[str, Any]) -> None:
    """Write a resumable state to `path`; if the disk is full, keep the previous file."""
    temporary = path.with_suffix(".tmp")
    try:
        with private_file(temporary) as file:  # a fixed name, so that killed processes leave at most one file
            torch.save(dict(state), file)
        fsync_path(temporary)
        os.replace(temporary, path)
        fsync_path(path.parent)
    except (OSError, RuntimeError):  # torch raises RuntimeError for a full disk
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def load_resume_state(path: Path, device: torch.device) -> dict[str, Any] | None:
    """Load a state with its tensors on `device`; return None if the file is missing or invalid."""
    if not path.is_file():
        return None
    try:
        found: dict[str, Any] = torch.load(path, map_location=device, weights_only=True)
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError):  # the work is repeated
        return None
    return found
