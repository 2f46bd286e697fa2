# SPDX-License-Identifier: Apache-2.0
"""Joins the sharded tensors of a converted checkpoint's ranks into whole tensors."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from trtspec.checkpoints.rules import Rule
from trtspec.checkpoints.safetensors import TensorInfo
from trtspec.checkpoints.sharding import ShardedTarget, ShardRegion, distinct_regions, shard
from trtspec.checkpoints.trtllm import AGAIN, TrtllmCheckpoint
from trtspec.core.errors import CheckpointError
from trtspec.engine.model.tensors import TORCH_DTYPES, map_tensor


def find_shard(checkpoint: TrtllmCheckpoint, rule: Rule) -> TensorInfo | None:
    """Return a rule's target on the first rank that should hold it, or None if it is missing."""
    sharded = _shard(checkpoint, rule)
    return checkpoint.ranks[sharded.ranks[0]].get(sharded.name)


def join_shards(checkpoint: TrtllmCheckpoint, rule: Rule) -> Tensor:
    """Return a rule's target as a whole tensor on the CPU in its stored dtype; without a copy if one rank holds it.

    Raise CheckpointError with tensor and file if a rank's shard is missing or has the wrong shape or dtype.
    """
    sharded = _shard(checkpoint, rule)
    shares = {rank: _share(checkpoint, sharded, rank) for rank in sharded.ranks}
    first = shares[sharded.ranks[0]]
    if len(shares) == 1:
        return first
    heights = [source.shape[0] for source in rule.sources]
    whole = torch.empty((sum(heights), prod(rule.sources[0].shape[1:])), dtype=first.dtype)
    parts = torch.split_with_sizes(whole, heights)
    for number, place in distinct_regions(sharded):
        _copy(shares[place.rank], place, parts[number])
    leading = (rule.experts, -1) if rule.experts else (len(whole),)
    return whole.view(*leading, *rule.sources[0].shape[1:])


def _shard(checkpoint: TrtllmCheckpoint, rule: Rule) -> ShardedTarget:
    return shard(rule, checkpoint.mapping, checkpoint.config.num_layers)


def _copy(share: Tensor, place: ShardRegion, source: Tensor) -> None:
    """Copy a rank's rectangle to its position in a source tensor [rows, columns]."""
    rows, columns = place.rows, place.columns
    held = share.view(-1, len(columns))[place.at_row : place.at_row + len(rows)]
    source[rows.start : rows.stop, columns.start : columns.stop] = held


def _share(checkpoint: TrtllmCheckpoint, sharded: ShardedTarget, rank: int) -> Tensor:
    tensor = checkpoint.ranks[rank].get(sharded.name)
    file = str(checkpoint.root / f"rank{rank}.safetensors")
    if tensor is None:
        raise CheckpointError(f"the tensor {sharded.name!r} is missing", where=file, hint=AGAIN)
    if tensor.shape != sharded.shape:
        expected = f"config.json requires {list(sharded.shape)}"
        raise CheckpointError(f"tensor {sharded.name!r} is {list(tensor.shape)}, {expected}", where=file, hint=AGAIN)
    if tensor.dtype not in TORCH_DTYPES:
        supported = f"the torch engine supports {', '.join(TORCH_DTYPES)}"
        raise CheckpointError(f"tensor {sharded.name!r} is {tensor.dtype}; {supported}", where=file, hint=AGAIN)
    return map_tensor(tensor)
