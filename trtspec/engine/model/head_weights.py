# SPDX-License-Identifier: Apache-2.0
"""Reads a draft head's tensors from the target's converted checkpoint, by the rules with which they were stored."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import torch
from torch import Tensor

from trtspec.checkpoints.model_config import ModelConfig
from trtspec.checkpoints.rules import Rule
from trtspec.checkpoints.trtllm import TrtllmCheckpoint
from trtspec.engine.model.layers import Block, GatedMlp, Linear
from trtspec.engine.model.matrix import make_matrix
from trtspec.engine.model.merge_shards import join_shards
from trtspec.engine.model.weights import norm_weight, paired_qkv, qk_norm, stack


class HeadWeights:
    """A draft head's tensors on a device, by full name; only tensors of the rules are available.

    Every call reads from the checkpoint and raises CheckpointError if a tensor is missing.
    """

    def __init__(
        self, checkpoint: TrtllmCheckpoint, rules: Iterable[Rule], device: torch.device, dtype: torch.dtype
    ) -> None:
        self._checkpoint, self._device, self._dtype = checkpoint, device, dtype
        self._rules = {rule.target: rule for rule in rules}

    def __contains__(self, name: str) -> bool:
        return name in self._rules

    def tensor(self, name: str, dtype: torch.dtype | None = None) -> Tensor:
        """Return a tensor in the compute dtype, or in `dtype`."""
        return join_shards(self._checkpoint, self._rules[name]).to(self._device, dtype or self._dtype)

    def target_ids(self, name: str) -> Tensor:
        """Return the target's ids of a draft's tokens, which are stored as offsets from the draft's ids."""
        offsets = self.tensor(name, torch.int64)
        return offsets + torch.arange(len(offsets), device=self._device)

    def norm(self, module: str) -> Tensor:
        """Return a norm's weight in the form that `Norm` expects."""
        return norm_weight(self.tensor(f"{module}.weight"))

    def linear(self, *modules: str, order: Callable[[Tensor], Tensor] = lambda rows: rows) -> Linear:
        """Return modules with the same input fused into one; `order` permutes the concatenated outputs."""

        def stacked(kind: str) -> Tensor:
            return order(stack([self.tensor(f"{module}.{kind}") for module in modules]))

        return Linear(make_matrix(stacked("weight")), stacked("bias") if f"{modules[0]}.bias" in self else None)

    def block(self, prefix: str, config: ModelConfig) -> Block:
        """Return a layer whose tensors have TensorRT-LLM's names after `prefix`."""
        attention = f"{prefix}.attention"
        q_norm, k_norm = (f"{attention}.{kind}_layernorm.weight" for kind in "qk")
        return Block(
            qkv=self.linear(f"{attention}.qkv", order=partial(paired_qkv, config=config)),
            qk_norm=qk_norm(self.tensor(q_norm), self.tensor(k_norm), config) if q_norm in self else None,
            kv_scale=None,
            dense=self.linear(f"{attention}.dense"),
            post_norm=self.norm(f"{prefix}.post_layernorm"),
            mlp=GatedMlp(self.linear(f"{prefix}.mlp.fc", f"{prefix}.mlp.gate"), self.linear(f"{prefix}.mlp.proj")),
        )
