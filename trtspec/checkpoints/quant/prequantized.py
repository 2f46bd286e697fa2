# SPDX-License-Identifier: Apache-2.0
"""Sources that are already quantized: their FP8 tensors, their scales, and the scheme of the conversion.

Quantized sources are copied as they are, without calibration. With `none` in the recipe, FP8 weights and an FP8 KV
cache stay FP8, and 16-bit tensors stay 16 bits. A recipe that requests another format is rejected, because the original
weights are not available.
"""

from __future__ import annotations

from dataclasses import dataclass

from trtspec.checkpoints.model_config import ModelConfig
from trtspec.checkpoints.quant.quant_config import HINT, QuantConfig, read_quant_config
from trtspec.checkpoints.quant.scheme import Scheme, scheme_problems
from trtspec.checkpoints.rules import QUANTIZED, Quantized, Rule, select_rows
from trtspec.checkpoints.safetensors import TensorInfo
from trtspec.checkpoints.source import Source
from trtspec.checkpoints.trtllm import QKV
from trtspec.core.errors import CheckpointError

ONE_VALUE: tuple[tuple[int, ...], ...] = ((), (1,))
WORDS = {
    "none": "weights in 16 bits",
    "fp8": "FP8 weights with one scale for each tensor",
    "fp8_rowwise": "FP8 weights with one scale for each row",
}


@dataclass(frozen=True)
class Prequantized:
    """A source, its declared quantization, and the names of its FP8 weights.

    The FP8 weights are identified by their dtype, because documents list excluded modules by different kinds of
    patterns or not at all.
    """

    source: Source
    declared: QuantConfig
    weights: frozenset[str]

    def weight_scale(self, weight: str) -> TensorInfo:
        """Return the scale tensor of a weight."""
        return self.source.tensors[_weight_scale(weight)]

    def row_scales(self, rule: Rule) -> tuple[TensorInfo, ...]:
        """Return the row scales of each of a rule's source tensors."""
        return tuple(select_rows(source, self.weight_scale(source.name)) for source in rule.sources)

    def input_scale(self, weight: str) -> TensorInfo:
        """Return the scale tensor of a weight's input."""
        return self.source.tensors[_input_scale(weight)]

    def cache_scale(self, weight: str, kind: str) -> TensorInfo:
        """Return the scale tensor of the key ("k") or value ("v") cache that `weight` projects to."""
        return self.source.tensors[self._cache_scale(weight, kind)]

    def tensors(self, rules: list[Rule]) -> Quantized:
        """Return the FP8 weights and their scales for `match`."""
        scales: dict[str, tuple[tuple[int, ...], ...]] = {}
        for weight in self.weights:
            rows = self.source.tensors[weight].shape[:1]
            if self.declared.weights == "fp8_rowwise":
                scales[_weight_scale(weight)] = (rows, (*rows, 1))
            else:
                scales[_weight_scale(weight)] = scales[_input_scale(weight)] = ONE_VALUE
        if self.declared.kv_cache == "fp8":
            for rule in rules:
                if rule.target == QKV:
                    projections = zip("kv", rule.sources[1:], strict=True)
                    scales |= {self._cache_scale(source.name, kind): ONE_VALUE for kind, source in projections}
        return Quantized(self.weights, scales)

    def scheme(self, rules: list[Rule]) -> Scheme:
        """Return the scheme that keeps every tensor in its present format."""
        if self.declared.weights == "none":
            return Scheme(kv_cache=self.declared.kv_cache)
        left_out = tuple(rule.module for rule in rules if rule.linear and not self._holds(rule))
        return Scheme(self.declared.weights, self.declared.kv_cache, left_out)

    def describe(self) -> str:
        """Return a description of the source's quantization."""
        cache = " and an FP8 KV cache" if self.declared.kv_cache == "fp8" else ""
        return f"{WORDS[self.declared.weights]}{cache}, by {self.declared.tool}"

    def problems(self, wanted: Scheme, config: ModelConfig, rules: list[Rule]) -> list[tuple[str, str]]:
        """Return the reasons why the source cannot be copied or does not match the recipe's `wanted` scheme.

        Each is (key below `quantization`, message).
        """
        own = scheme_problems(self.scheme(rules), config, rules)
        return [
            *self._conflicts(wanted, rules),
            *(("weights", problem) for rule in rules if (problem := self._rule_problem(rule))),
            *(("weights", problem) for _, problem in own),
        ]

    def _cache_scale(self, weight: str, kind: str) -> str:
        """Return the name of the scale, next to the projection (ModelOpt) or to the attention (compressed-tensors)."""
        projection = weight.removesuffix(".weight")
        beside_attention = f"{projection.rpartition('.')[0]}.{kind}_scale"
        return beside_attention if beside_attention in self.source.tensors else f"{projection}.{kind}_scale"

    def _holds(self, rule: Rule) -> bool:
        return all(source.name in self.weights for source in rule.sources)

    def _rule_problem(self, rule: Rule) -> str | None:
        inside = [source.name for source in rule.sources if source.name in self.weights]
        if inside and not rule.linear:
            return f"{inside[0]} is in FP8, but engines require {rule.module} in 16 bits"
        if inside and len(inside) < len(rule.sources):
            other = next(source.name for source in rule.sources if source.name not in self.weights)
            return f"engines fuse {inside[0]}, in FP8, and {other}, in 16 bits"
        return None

    def _conflicts(self, wanted: Scheme, rules: list[Rule]) -> list[tuple[str, str]]:
        found, own = [], self.declared
        if wanted.weights not in ("none", own.weights):
            message = (
                f"the source has {WORDS[own.weights]}, which are copied and cannot be converted to {wanted.weights}"
            )
            found.append(("weights", message))
        elif wanted.weights != "none":
            kept = Scheme(wanted.weights, exclude=wanted.exclude)
            if odd := next((rule for rule in rules if self._holds(rule) and not kept.quantizes(rule)), None):
                found.append(("exclude", f"{odd.module} is in FP8 in the source and cannot be excluded"))
        if wanted.kv_cache == "fp8" and own.kv_cache == "none":
            message = "the source lacks scales for an FP8 KV cache, and quantized sources are not calibrated"
            found.append(("kv_cache", message))
        return found


def read_prequantized(source: Source) -> Prequantized | None:
    """Return a source's quantization, or None if it is not quantized.

    Raises CheckpointError if the quantization is not supported or does not match the weights.
    """
    declared = read_quant_config(source)
    fp8 = (name for name, tensor in source.tensors.items() if tensor.dtype == QUANTIZED)
    weights = frozenset(name for name in fp8 if name.endswith(".weight"))
    if weights and (declared is None or declared.weights == "none"):
        message = f"{min(weights)} is in FP8, but its scaling is not declared"
        hint = "add hf_quant_config.json, or quantization_config in config.json"
        raise CheckpointError(message, where=str(source.root), hint=hint)
    if declared is None or declared == QuantConfig(declared.tool):
        return None
    if declared.weights != "none" and not weights:
        message = f"the {declared.tool} configuration declares FP8 weights, but the source lacks them"
        raise CheckpointError(message, where=str(source.root), hint=HINT)
    return Prequantized(source, declared, weights)


def resolve_scheme(existing: Prequantized | None, wanted: Scheme, config: ModelConfig, rules: list[Rule]) -> Scheme:
    """Return the scheme of the converted model: the recipe's `wanted` scheme, or the scheme of a quantized source.

    Raises CheckpointError if the two conflict.
    """
    if existing is None:
        return wanted
    if problems := existing.problems(wanted, config, rules):
        message = "; ".join(text for _, text in problems[:3])
        raise CheckpointError(message, where=str(existing.source.root), hint=HINT)
    return existing.scheme(rules)


def _weight_scale(weight: str) -> str:
    return f"{weight}_scale"


def _input_scale(weight: str) -> str:
    return f"{weight.removesuffix('weight')}input_scale"
