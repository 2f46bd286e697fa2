# SPDX-License-Identifier: Apache-2.0
"""Plan of a conversion: the dtype and position of every tensor, and the layout of each rank's file.

Uses only headers; checkpoints/stream.py runs the plan.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from trtspec.checkpoints.model_config import ModelConfig
from trtspec.checkpoints.quant.scheme import Scheme
from trtspec.checkpoints.rules import Rule, Stage, layer_tensor
from trtspec.checkpoints.safetensors import FileLayout, lay_out
from trtspec.checkpoints.scales import KV_SCALES, activation_scale, cache_scale, row_scales, weight_scale
from trtspec.checkpoints.sharding import ParallelMapping, ShardedTarget, shard
from trtspec.checkpoints.trtllm import DTYPES, QKV, TrtllmQuantization, render_config


@dataclass(frozen=True)
class TargetTensor:
    """One tensor of the converted checkpoint: its rule, its dtype and its positions."""

    rule: Rule
    dtype: str
    sharded: ShardedTarget


@dataclass
class Conversion:
    """A planned conversion; `targets` by the rule's full name, in file order."""

    config: ModelConfig
    mapping: ParallelMapping
    scheme: Scheme
    targets: dict[str, TargetTensor] = field(default_factory=dict)

    def add(self, rule: Rule, dtype: str) -> None:
        """Add the target of a rule."""
        self.targets[rule.name] = TargetTensor(rule, dtype, shard(rule, self.mapping, self.config.num_layers))

    def find_scale(self, target: TargetTensor, name: str) -> TargetTensor:
        """Return the scale of a quantized weight."""
        return self.targets[f"{target.rule.module}.{name}"]

    def fused_with(self, target: TargetTensor) -> TargetTensor | None:
        """Return the weight that the engine fuses with this one if both have the same dtype, else None."""
        rule = target.rule
        if isinstance(rule.at, Stage) or not rule.linear or not rule.linear.fused:
            return None
        twin = self.targets.get(layer_tensor(rule.at, rule.linear.fused))
        return twin if twin and twin.dtype == target.dtype else None

    def layouts(self) -> list[FileLayout]:
        """Return the layout of each rank's file."""
        by_rank: list[list[tuple[str, str, tuple[int, ...]]]] = [[] for _ in range(self.mapping.ranks)]
        for target in self.targets.values():
            for rank in target.sharded.ranks:
                by_rank[rank].append((target.sharded.name, target.dtype, target.sharded.shape))
        return [lay_out(tensors) for tensors in by_rank]

    @property
    def quantization(self) -> TrtllmQuantization:
        """Return the `quantization` of config.json."""
        return self.scheme.describe([target.rule for target in self.targets.values()])

    def render_config(self) -> dict[str, Any]:
        return render_config(self.config, self.mapping, self.quantization)


def plan_conversion(config: ModelConfig, rules: list[Rule], mapping: ParallelMapping, scheme: Scheme) -> Conversion:
    """Plan the dtype and position of every tensor, including scales."""
    plan = Conversion(config, mapping, scheme)
    for rule in rules:
        quantized = scheme.quantizes(rule)
        plan.add(rule, "F8_E4M3" if quantized else rule.dtype or DTYPES[config.dtype])
        if quantized:
            for scale in _scales(rule, scheme):
                plan.add(scale, "F32")
        if rule.target == QKV and scheme.kv_cache == "fp8":
            for kind in KV_SCALES:
                plan.add(cache_scale(rule, kind), "F32")
    return plan


def _scales(rule: Rule, scheme: Scheme) -> list[Rule]:
    """Return the rules of the scales of a quantized weight."""
    return [row_scales(rule)] if scheme.weights == "fp8_rowwise" else [weight_scale(rule), activation_scale(rule)]
