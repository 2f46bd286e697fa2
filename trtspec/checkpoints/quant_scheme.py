# SPDX-License-Identifier: Apache-2.0
"""The quantization scheme of a recipe: which modules are quantized, in which format, and their scales."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase, translate
from functools import cache

from trtspec.checkpoints.model_config import ModelConfig
from trtspec.checkpoints.rules import Rule, SourceTensor, Stage, layer_tensor, row_split
from trtspec.checkpoints.trtllm import FP8, FP8_ROWWISE, LM_HEAD, TrtllmQuantization

ALGORITHMS = {"none": "", "fp8": FP8, "fp8_rowwise": FP8_ROWWISE}
# The engine selects experts in float32, whatever the format of the experts.
ROUTERS = "*router"


@dataclass(frozen=True)
class Scheme:
    """Formats of the weights ("none", "fp8" or "fp8_rowwise") and of the KV cache ("none" or "fp8").

    `exclude` are fnmatch patterns of modules that are not quantized.
    """

    weights: str = "none"
    kv_cache: str = "none"
    exclude: tuple[str, ...] = ("lm_head",)

    @property
    def is_quantized(self) -> bool:
        return self.weights != "none" or self.kv_cache != "none"

    @property
    def needs_activations(self) -> bool:
        """Return whether calibration is needed; fp8_rowwise computes activation scales at run time."""
        return self.weights == "fp8" or self.kv_cache == "fp8"

    def quantizes(self, rule: Rule) -> bool:
        return (
            self.weights != "none" and bool(rule.linear) and not _compile_patterns(self.exclude).fullmatch(rule.module)
        )

    def describe(self, rules: list[Rule]) -> TrtllmQuantization:
        """Return the `quantization` section of the converted config.json.

        Modules are listed by name, because TensorRT-LLM's passes interpret `*` differently (fnmatch in
        quantization/quantize.py; a prefix in QuantConfig._get_quant_cfg, which decides whether MLPs are fused).
        """
        if self.weights == "none":
            return TrtllmQuantization(kv_cache_algo=ALGORITHMS[self.kv_cache])
        left_out = (rule for rule in rules if rule.linear and not self.quantizes(rule))
        names = [name for rule in left_out for name in self._excluded_modules(rule)]
        if any(rule.experts for rule in rules):
            names.append(ROUTERS)
        return TrtllmQuantization(ALGORITHMS[self.weights], ALGORITHMS[self.kv_cache], tuple(dict.fromkeys(names)))

    def _excluded_modules(self, rule: Rule) -> list[str]:
        """Return the TensorRT-LLM modules to exclude so that a linear layer stays in 16 bits."""
        block = rule.module.rpartition(".")[0]
        if rule.experts:
            return [block]
        if self.weights == "fp8" or isinstance(rule.at, Stage):
            return [rule.module]
        return [block, *([layer_tensor(rule.at, rule.linear.norm)] if rule.linear and rule.linear.norm else [])]


@cache
def _compile_patterns(patterns: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile("|".join(map(translate, patterns)) or r"(?!)")  # without patterns: matches nothing


def stage_problems(scheme: Scheme, rules: list[Rule]) -> list[tuple[str, str]]:
    """Return the problems of a scheme with pipeline stages, as (key below `quantization`, message).

    Each stage numbers its layers from 0, so patterns cannot select single layers.
    """
    by_kind: dict[str, set[bool]] = {}
    for rule in rules:
        if rule.linear and not isinstance(rule.at, Stage):
            by_kind.setdefault(rule.target, set()).add(scheme.quantizes(rule))
    if all(len(kinds) == 1 for kinds in by_kind.values()):
        return []
    return [("exclude", "pipeline stages number their layers from 0, so patterns cannot select single layers")]


def scheme_problems(scheme: Scheme, config: ModelConfig, rules: list[Rule]) -> list[tuple[str, str]]:
    """Return the reasons why a scheme is not supported, as (key below `quantization`, message)."""
    if scheme.weights == "none":
        return []
    found = []
    modules = {rule.module for rule in rules}
    for number, pattern in enumerate(scheme.exclude):
        if not any(fnmatchcase(module, pattern) for module in modules):
            found.append(
                (
                    f"exclude.{number}",
                    f"no module matches {pattern!r}; an example is transformer.layers.0.attention.qkv",
                )
            )
    quantized = {(rule.at, rule.target) for rule in rules if scheme.quantizes(rule)}
    if any(target == LM_HEAD for _, target in quantized):
        if scheme.weights == "fp8_rowwise":
            found.append(("exclude", "fp8_rowwise engines need lm_head in the model's dtype; exclude lm_head"))
        elif config.tied_embeddings:
            found.append(("exclude", "lm_head is tied to the embedding, which is not quantized; exclude lm_head"))
    if problem := _format_conflict(scheme, rules):
        found.append(("exclude", problem))
    if config.num_experts and scheme.weights == "fp8_rowwise":
        found.append(("weights", "TensorRT-LLM does not support fp8_rowwise for a mixture of experts; use fp8"))
    return found


def _format_conflict(scheme: Scheme, rules: list[Rule]) -> str | None:
    """Return a message if only some of the linear layers that engines require in one format are excluded, else None."""
    kinds: dict[tuple[int, str], set[bool]] = {}
    for rule in rules:
        if not isinstance(rule.at, Stage) and (reason := _shared_format_reason(rule, scheme)):
            kinds.setdefault((rule.at, reason), set()).add(scheme.quantizes(rule))
    conflicts = (f"{reason} (layer {layer})" for (layer, reason), found in kinds.items() if len(found) > 1)
    return next(conflicts, None)


def _shared_format_reason(rule: Rule, scheme: Scheme) -> str:
    """Return the reason why engines require one format for a linear layer and some others, or ""."""
    if not rule.linear:
        return ""
    if rule.experts:
        return f"engines have one format for a layer's experts; exclude '*.{rule.block}.*' or none"
    if scheme.weights == "fp8_rowwise":
        return f"fp8_rowwise engines have one format for a layer's {rule.block}; exclude '*.{rule.block}.*' or none"
    if rule.linear.fused:
        one, other = sorted(target.removesuffix(".weight") for target in (rule.target, rule.linear.fused))
        return f"engines fuse {one} and {other} of a layer; exclude both or none"
    return ""


# TensorRT-LLM uses the larger of "k" and "v", or "kv" if it is the only one.
KV_SCALES = ("k", "v", "kv")


def weight_scale(weight: Rule) -> Rule:
    """Return the conversion rule for a weight's scale: one value, or one per expert."""
    target = f"{_module(weight)}.weights_scaling_factor"
    if weight.experts:
        return Rule(target, (SourceTensor("", (weight.experts, 1)),), weight.at)
    return _scalar(target, weight)


def row_scales(weight: Rule) -> Rule:
    """Return the conversion rule for a weight's row scales; its sources are in the order of the weight's sources."""
    sources = tuple(replace(source, name="", shape=source.shape[:1]) for source in weight.sources)
    target, split = f"{_module(weight)}.per_channel_scale", row_split(weight.split)
    return replace(weight, target=target, sources=sources, split=split, linear=None)


def activation_scale(weight: Rule) -> Rule:
    """Return the conversion rule for the scale of a weight's input activations."""
    return _scalar(f"{_module(weight)}.activation_scaling_factor", weight)


def cache_scale(qkv: Rule, kind: str) -> Rule:
    """Return the conversion rule for a KV-cache scale: of keys ("k"), of values ("v") or of both ("kv")."""
    return _scalar(f"{qkv.block}.{kind}_cache_scaling_factor", qkv)


def _module(weight: Rule) -> str:
    return weight.target.removesuffix(".weight")


def _scalar(target: str, weight: Rule) -> Rule:
    return Rule(target, (SourceTensor("", (1,)),), weight.at)
