# SPDX-License-Identifier: Apache-2.0
"""Which modules of a model are quantized and how, as a recipe asks for it. Knows rules, not bytes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase, translate
from functools import cache

from trtspec.checkpoint.model_config import ModelConfig
from trtspec.checkpoint.rules import Rule, Stage
from trtspec.checkpoint.trtllm import FP8, FP8_ROWWISE, LM_HEAD, Quantization

ALGORITHMS = {"none": "", "fp8": FP8, "fp8_rowwise": FP8_ROWWISE}
LINEAR = ("attention.qkv.weight", "attention.dense.weight", "mlp.fc.weight", "mlp.gate.weight", "mlp.proj.weight")
# The engine picks experts in float32, whatever the experts are stored in.
ROUTERS = "*router"
FUSED = {"mlp.fc.weight": "mlp.gate.weight", "mlp.gate.weight": "mlp.fc.weight"}


@dataclass(frozen=True)
class Scheme:
    """`weights` is none, fp8 or fp8_rowwise, `kv_cache` none or fp8; `exclude` are fnmatch patterns of module names."""

    weights: str = "none"
    kv_cache: str = "none"
    exclude: tuple[str, ...] = ("lm_head",)

    @property
    def is_quantized(self) -> bool:
        """Return whether anything becomes FP8."""
        return self.weights != "none" or self.kv_cache != "none"

    @property
    def needs_activations(self) -> bool:
        """Return whether something is scaled by what was measured on prompts; rows are scaled as they come."""
        return self.weights == "fp8" or self.kv_cache == "fp8"

    def quantizes(self, rule: Rule) -> bool:
        """Return whether a rule's target becomes FP8."""
        return self.weights != "none" and is_linear(rule) and not _any_of(self.exclude).fullmatch(rule.module)

    def describe(self, config: ModelConfig) -> Quantization:
        """Return what config.json says of it."""
        routers = (ROUTERS,) if config.num_experts else ()
        return Quantization(ALGORITHMS[self.weights], ALGORITHMS[self.kv_cache], (*self.exclude, *routers))


def is_linear(rule: Rule) -> bool:
    """Return whether a rule's target is the weight of a linear layer, which may be FP8."""
    return rule.target in LINEAR or rule.target == LM_HEAD


@cache
def _any_of(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(translate, patterns)) or r"(?!)")  # without patterns, what matches nothing


def stage_problems(scheme: Scheme, rules: list[Rule]) -> list[tuple[str, str]]:
    """Return what pipeline stages add to `scheme_problems`: each numbers its layers from 0, and patterns see that."""
    by_kind: dict[str, set[bool]] = {}
    for rule in rules:
        if is_linear(rule) and not isinstance(rule.at, Stage):
            by_kind.setdefault(rule.target, set()).add(scheme.quantizes(rule))
    if all(len(kinds) == 1 for kinds in by_kind.values()):
        return []
    return [("exclude", "stages number their layers from 0, so with several no pattern can name single layers")]


def scheme_problems(scheme: Scheme, config: ModelConfig, rules: list[Rule]) -> list[tuple[str, str]]:
    """Return what cannot be done, each as (key below `quantization`, what is wrong in words)."""
    if scheme.weights == "none":
        return []
    found = []
    modules = {rule.module for rule in rules}
    for number, pattern in enumerate(scheme.exclude):
        if not any(fnmatchcase(module, pattern) for module in modules):
            found.append(
                (f"exclude.{number}", f"no module matches {pattern!r}; one is transformer.layers.0.attention.qkv")
            )
    quantized = {(rule.at, rule.target) for rule in rules if scheme.quantizes(rule)}
    if any(target == LM_HEAD for _, target in quantized):
        if scheme.weights == "fp8_rowwise":
            found.append(("exclude", "fp8_rowwise engines need lm_head in the model's dtype; exclude lm_head"))
        elif config.tied_embeddings:
            found.append(("exclude", "lm_head is the embedding of this model, which is not quantized; exclude lm_head"))
    present = {(rule.at, rule.target) for rule in rules}
    for at, target in sorted(quantized, key=str):
        other = (at, FUSED.get(target, ""))
        if other in present and other not in quantized:
            found.append(("exclude", f"engines fuse mlp.fc and mlp.gate of a layer; exclude both or none (layer {at})"))
            break
    if config.num_experts and scheme.weights == "fp8_rowwise":
        found.append(("weights", "TensorRT-LLM has no fp8_rowwise mixture of experts; use fp8"))
    return found
