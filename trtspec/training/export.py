# SPDX-License-Identifier: Apache-2.0
"""Write tensors to a Hugging Face directory; a trained draft keeps the files and layout of its source."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from trtspec.checkpoints.safetensors import TensorInfo, lay_out
from trtspec.checkpoints.source import INDEX, Source
from trtspec.checkpoints.writer import Part
from trtspec.core.files import fsync_path
from trtspec.engine.model.tensors import TORCH_DTYPES

_WHOLE = {torch.int64: "I64", torch.bool: "BOOL"}


def write_checkpoint(source: Source, trained: Mapping[str, Tensor], out: Path) -> None:
    """Write the source to `out` with trained tensors, rounded to their stored dtypes.

    Names, shards, config.json and tokenizer are unchanged, so readers of the source can read the result.
    """
    for path in [*source.documents, *source.tokenizer_files, source.root / INDEX]:
        if path.is_file():
            shutil.copyfile(path, out / path.name)
    for shard in source.weight_files:
        tensors = [tensor for tensor in source.tensors.values() if tensor.file == shard]
        _write_shard(out / shard.name, tensors, trained)


def _write_shard(path: Path, tensors: list[TensorInfo], trained: Mapping[str, Tensor]) -> None:
    layout = lay_out((tensor.name, tensor.dtype, tensor.shape) for tensor in tensors)
    with path.open("wb") as file:
        file.write(layout.header)
        for tensor in tensors:
            file.write(_bytes(tensor, trained))
    fsync_path(path)


def _bytes(tensor: TensorInfo, trained: Mapping[str, Tensor]) -> memoryview:
    if tensor.name not in trained:
        return np.memmap(tensor.file, np.uint8, "r", tensor.offset, (tensor.nbytes,)).data
    return _rounded(trained[tensor.name], tensor.dtype)


def make_part(name: str, values: Tensor, dtype: str) -> Part:
    """Return a tensor for writing; floating-point numbers are rounded to a dtype given by its safetensors name."""
    stored = dtype if values.is_floating_point() else _WHOLE[values.dtype]
    return Part(name, stored, tuple(values.shape), bytes(_rounded(values, stored)))


def _rounded(values: Tensor, dtype: str) -> memoryview:
    rounded = values.cpu().to(TORCH_DTYPES.get(dtype, values.dtype)).contiguous()
    return rounded.flatten().view(torch.uint8).numpy().data
