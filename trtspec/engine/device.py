# SPDX-License-Identifier: Apache-2.0
"""The device and dtype that torch computes with."""

from __future__ import annotations

import torch

from trtspec.checkpoints.trtllm import DTYPES, Checkpoint
from trtspec.core.errors import TrtspecError
from trtspec.engine.model.tensors import TORCH_DTYPES


def choose_device(wanted: str) -> torch.device:
    """Return the device for "auto" (CUDA where there is one), "cuda" or "cpu"; raises TrtspecError for none."""
    if wanted == "cuda" and not torch.cuda.is_available():
        raise TrtspecError("device cuda was asked for and this machine has none", hint="use device auto or cpu")
    if wanted == "auto":
        wanted = "cuda" if torch.cuda.is_available() else "cpu"
    if wanted == "cuda":
        # torch prefers cuDNN's attention on Hopper and Blackwell, which is planned anew for every length of the keys
        # (pytorch/pytorch 155958): every decode step has another
        torch.backends.cuda.enable_cudnn_sdp(False)
    return torch.device(wanted)


def compute_dtype(wanted: str, device: torch.device, checkpoint: Checkpoint) -> torch.dtype:
    """Return the compute dtype of a checkpoint on a device: as wanted, or for "auto" by device and quantization."""
    if wanted != "auto":
        return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[wanted]
    if device.type != "cpu":
        return TORCH_DTYPES[DTYPES[checkpoint.config.dtype]]
    # Rounding to FP8 amplifies a difference of one float32 ulp, as between one row and six, to a step of e4m3. In
    # float64 the text with and without speculation is the same again.
    quantized = checkpoint.quantization.algo or checkpoint.quantization.kv_cache_algo
    # at batch 1 float32 is faster than bf16 on the CPUs measured (benchmarks/experiments/log.md), and exact to 1e-6
    return torch.float64 if quantized else torch.float32
