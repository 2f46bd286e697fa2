# SPDX-License-Identifier: Apache-2.0
"""Division over ranks with torch operations, from a checkpoint of one rank: a short and simple reference."""

from __future__ import annotations

import math

import torch

Tensors = dict[str, torch.Tensor]
FIRST, LAST = ("transformer.vocab_embedding.weight",), ("transformer.ln_f.weight", "lm_head.weight")
BY_ROWS = ("mlp.fc.weight", "mlp.fc.bias", "mlp.fc.per_channel_scale",
           "mlp.gate.weight", "mlp.gate.bias", "mlp.gate.per_channel_scale")  # fmt: skip
BY_COLUMNS = ("attention.dense.weight", "mlp.proj.weight")


def divided(
    whole: Tensors, heads: int, kv_heads: int, layers: int, tensor: int, pipeline: int, branches: int = 1
) -> list[Tensors]:
    """Return the tensors of each rank: `tensor` ranks per stage, `pipeline` stages; mlp.fc has `branches` branches."""
    stages = [part.tolist() for part in torch.tensor_split(torch.arange(layers), pipeline)]
    return [
        {
            local: divide(value, local, heads, kv_heads, tensor, branches)[position]
            for name, value in whole.items()
            if (local := local_name(name, stages, stage))
        }
        for stage in range(pipeline)
        for position in range(tensor)
    ]


def local_name(name: str, stages: list[list[int]], stage: int) -> str | None:
    """Return the name of a tensor on a stage, or None if it belongs to another stage."""
    if name in FIRST + LAST:
        return name if stage == (0 if name in FIRST else len(stages) - 1) else None
    layer, rest = name.removeprefix("transformer.layers.").split(".", 1)
    mine = stages[stage]
    return f"transformer.layers.{mine.index(int(layer))}.{rest}" if int(layer) in mine else None


def divide(
    value: torch.Tensor, name: str, heads: int, kv_heads: int, tensor: int, branches: int = 1
) -> list[torch.Tensor]:
    """Return the shares of a tensor over the ranks of a stage."""
    if value.dtype == torch.float8_e4m3fn:  # few operations support it
        bits = divide(value.view(torch.uint8), name, heads, kv_heads, tensor, branches)
        return [share.view(torch.float8_e4m3fn) for share in bits]
    if name.endswith(("attention.qkv.weight", "attention.qkv.bias", "attention.qkv.per_channel_scale")):
        return divide_heads(value, heads, kv_heads, tensor)
    if value.dim() == 3:
        return divide_experts(value, name, tensor)
    if name.endswith(BY_ROWS + BY_COLUMNS):
        return divide_mlp(value, name, tensor, branches)
    if name in ("lm_head.weight", *FIRST):
        missing = math.ceil(len(value) / tensor) * tensor - len(value)
        return list(torch.cat([value, value.new_zeros(missing, *value.shape[1:])]).chunk(tensor))
    return [value] * tensor


def divide_mlp(value: torch.Tensor, name: str, tensor: int, branches: int) -> list[torch.Tensor]:
    """Divide a matrix of an MLP or attention's dense; each of the `branches` in mlp.fc is divided separately."""
    if name.endswith(BY_COLUMNS):
        return list(value.chunk(tensor, dim=1))
    apart = [branch.chunk(tensor) for branch in value.chunk(branches if ".mlp.fc." in name else 1)]
    return [torch.cat(share) for share in zip(*apart, strict=True)]


def divide_heads(value: torch.Tensor, heads: int, kv_heads: int, tensor: int) -> list[torch.Tensor]:
    """Divide queries, keys and values separately; with fewer key heads than ranks, key heads are repeated."""
    size = len(value) // (heads + 2 * kv_heads)
    shares, counts = [], (heads, kv_heads, kv_heads)
    for part, count in zip(value.split([count * size for count in counts]), counts, strict=True):
        by_head = part.unflatten(0, (count, size)).repeat_interleave(max(1, tensor // count), 0)
        shares.append(by_head.flatten(0, 1).chunk(tensor))
    return [torch.cat(share) for share in zip(*shares, strict=True)]


def divide_experts(value: torch.Tensor, name: str, tensor: int) -> list[torch.Tensor]:
    """Divide every expert in the same way; the two stacked branches of fc are divided separately."""
    if name.endswith("mlp.proj.weight"):
        return list(value.chunk(tensor, dim=2))
    linear, activated = (branch.chunk(tensor, dim=1) for branch in value.chunk(2, dim=1))
    return [torch.cat(share, dim=1) for share in zip(linear, activated, strict=True)]
