# SPDX-License-Identifier: Apache-2.0
"""Plan of a conversion: the dtype and position of every tensor, each rank's file layout, and calibrated activations.

Only headers are needed; checkpoints/stream.py runs the plan.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trtspec.checkpoints.model_config import ModelConfig
from trtspec.checkpoints.quant_scheme import KV_SCALES, Scheme, activation_scale, cache_scale, row_scales, weight_scale
from trtspec.checkpoints.rules import Rule, Stage, layer_tensor
from trtspec.checkpoints.safetensors import FileLayout, lay_out
from trtspec.checkpoints.sharding import ParallelMapping, ShardedTarget, shard
from trtspec.checkpoints.source import read_json
from trtspec.checkpoints.trtllm import DTYPES, QKV, TrtllmQuantization, render_config
from trtspec.core.errors import CheckpointError

ACTIVATIONS_SCHEMA = "trtspec.activations/1"
ACTIVATIONS = "activations.json"
MAX_ACTIVATIONS_BYTES = 16 << 20


@dataclass
class Activations:
    """Largest magnitudes measured by calibration, by module name.

    `inputs` has the inputs of linear layers, such as transformer.layers.0.attention.qkv. `keys` (after rotation) and
    `values` have the KV-cache entries of attention modules, such as transformer.layers.0.attention.
    """

    inputs: dict[str, float] = field(default_factory=dict)
    keys: dict[str, float] = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Write the activations as JSON, which preserves float32 values exactly."""
        document = {"schema": ACTIVATIONS_SCHEMA, "inputs": self.inputs, "keys": self.keys, "values": self.values}
        path.write_text(json.dumps(document, indent=1) + "\n")


def load_activations(path: Path) -> Activations:
    """Load the activations written by `Activations.save`; raise CheckpointError if they are invalid."""
    document = read_json(path, MAX_ACTIVATIONS_BYTES)
    tables = [document.get(name) for name in ("inputs", "keys", "values")]
    if document.get("schema") != ACTIVATIONS_SCHEMA or not all(_is_table(table) for table in tables):
        raise CheckpointError(
            f"not a {ACTIVATIONS_SCHEMA} document", where=str(path), hint="trtspec build measures the activations again"
        )
    return Activations(*tables)  # type: ignore[arg-type]


def _is_table(table: Any) -> bool:
    return isinstance(table, dict) and all(
        type(value) in (int, float) and math.isfinite(value) and value >= 0 for value in table.values()
    )


@dataclass(frozen=True)
class TargetTensor:
    """A tensor of the converted checkpoint: its rule, its dtype, and its shards on the ranks."""

    rule: Rule
    dtype: str
    sharded: ShardedTarget


@dataclass
class Conversion:
    """A planned conversion; `targets` maps full tensor names to tensors, in file order."""

    config: ModelConfig
    mapping: ParallelMapping
    scheme: Scheme
    targets: dict[str, TargetTensor] = field(default_factory=dict)

    def add(self, rule: Rule, dtype: str) -> None:
        self.targets[rule.name] = TargetTensor(rule, dtype, shard(rule, self.mapping, self.config.num_layers))

    def find_scale(self, target: TargetTensor, name: str) -> TargetTensor:
        return self.targets[f"{target.rule.module}.{name}"]

    def fused_with(self, target: TargetTensor) -> TargetTensor | None:
        """Return the weight that the engine fuses with `target` if it exists and has the same dtype, else None."""
        rule = target.rule
        if isinstance(rule.at, Stage) or not rule.linear or not rule.linear.fused:
            return None
        twin = self.targets.get(layer_tensor(rule.at, rule.linear.fused))
        return twin if twin and twin.dtype == target.dtype else None

    def layouts(self) -> list[FileLayout]:
        by_rank: list[list[tuple[str, str, tuple[int, ...]]]] = [[] for _ in range(self.mapping.ranks)]
        for target in self.targets.values():
            for rank in target.sharded.ranks:
                by_rank[rank].append((target.sharded.name, target.dtype, target.sharded.shape))
        return [lay_out(tensors) for tensors in by_rank]

    @property
    def quantization(self) -> TrtllmQuantization:
        """Return the `quantization` section of the converted config.json."""
        return self.scheme.describe([target.rule for target in self.targets.values()])

    def render_config(self) -> dict[str, Any]:
        return render_config(self.config, self.mapping, self.quantization)


def plan_conversion(config: ModelConfig, rules: list[Rule], mapping: ParallelMapping, scheme: Scheme) -> Conversion:
    """Plan the dtype and position of every tensor, including the scales of quantized weights and of the KV cache."""
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
    """Return the rules of a quantized weight's scales: one per row, or one each for the weight and its input."""
    return [row_scales(rule)] if scheme.weights == "fp8_rowwise" else [weight_scale(rule), activation_scale(rule)]
