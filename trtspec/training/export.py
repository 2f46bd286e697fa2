# SPDX-License-Identifier: Apache-2.0
"""A trained draft as a Hugging Face directory: every file as it came, with other bytes where a tensor was trained."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from trtspec.checkpoint.safetensors import TensorInfo, lay_out
from trtspec.checkpoint.source import INDEX, Source
from trtspec.files import sync
from trtspec.torch_engine.model.tensors import TORCH_DTYPES


def write_checkpoint(source: Source, trained: Mapping[str, Tensor], out: Path) -> None:
    """Write the source below `out` with trained tensors, rounded to the dtype that each is stored in.

    Names, shards, config.json and tokenizer are the source's, so whoever reads it reads this.
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
    sync(path)


def _bytes(tensor: TensorInfo, trained: Mapping[str, Tensor]) -> memoryview:
    if tensor.name not in trained:
        return np.memmap(tensor.file, np.uint8, "r", tensor.offset, (tensor.nbytes,)).data
    values = trained[tensor.name].cpu()
    rounded = values.to(TORCH_DTYPES.get(tensor.dtype, values.dtype)).contiguous()
    return rounded.flatten().view(torch.uint8).numpy().data
