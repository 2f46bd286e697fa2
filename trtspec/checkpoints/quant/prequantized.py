# SPDX-License-Identifier: Apache-2.0
"""Sources that are quantized already: which of their tensors are FP8, which are the scales, and what becomes of them.

They are taken over as they are. Nothing is calibrated, and a recipe's `none` asks for nothing: what the source has in
FP8 stays in FP8, its KV cache too, and what it left in 16 bits stays in 16 bits. A recipe that asks for something else
is refused, because the weights that the source was made from are not there any more.
"""

from __future__ import annotations

from dataclasses import dataclass

from trtspec.checkpoints.model_config import ModelConfig
from trtspec.checkpoints.quant.quant_config import HINT, QuantConfig, read_quant_config
from trtspec.checkpoints.quant.scheme import Scheme, scheme_problems
from trtspec.checkpoints.rules import QUANTIZED, Quantized, Rule, rows_of
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
    """A source, the quantization it declares, and the names of its weights in FP8.

    Which these are is what their dtype says: of the modules that were left out, documents name some by patterns of
    several kinds, and others not at all.
    """

    source: Source
    declared: QuantConfig
    weights: frozenset[str]

    def weight_scale(self, weight: str) -> TensorInfo:
        """Return the tensor that scales a weight."""
        return self.source.tensors[_weight_scale(weight)]

    def row_scales(self, rule: Rule) -> tuple[TensorInfo, ...]:
        """Return the scales of the rows of each of a rule's source tensors."""
        return tuple(rows_of(source, self.weight_scale(source.name)) for source in rule.sources)

    def input_scale(self, weight: str) -> TensorInfo:
        """Return the tensor that scales what a weight is multiplied with."""
        return self.source.tensors[_input_scale(weight)]

    def cache_scale(self, weight: str, kind: str) -> TensorInfo:
        """Return the tensor that scales the cache of keys ("k") or values ("v"), which `weight` projects."""
        return self.source.tensors[self._cache_scale(weight, kind)]

    def tensors(self, rules: list[Rule]) -> Quantized:
        """Return what `match` has to know of the source: the weights in FP8, and the scales that belong to them."""
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
        """Return the scheme by which a conversion leaves everything in the format it is in."""
        if self.declared.weights == "none":
            return Scheme(kv_cache=self.declared.kv_cache)
        left_out = tuple(rule.module for rule in rules if rule.linear and not self._holds(rule))
        return Scheme(self.declared.weights, self.declared.kv_cache, left_out)

    def describe(self) -> str:
        """Return the source's quantization in words."""
        cache = " and an FP8 KV cache" if self.declared.kv_cache == "fp8" else ""
        return f"{WORDS[self.declared.weights]}{cache}, by {self.declared.tool}"

    def problems(self, wanted: Scheme, config: ModelConfig, rules: list[Rule]) -> list[tuple[str, str]]:
        """Return what keeps the source from being taken over, or from being what the recipe's `wanted` asks for.

        Each is (key below `quantization`, what is wrong in words).
        """
        own = scheme_problems(self.scheme(rules), config, rules)
        return [
            *self._asked_otherwise(wanted, rules),
            *(("weights", problem) for rule in rules if (problem := self._complaint(rule))),
            *(("weights", problem) for _, problem in own),
        ]

    def _cache_scale(self, weight: str, kind: str) -> str:
        """Return where the scale is: beside the projection (ModelOpt) or beside the attention (compressed-tensors)."""
        projection = weight.removesuffix(".weight")
        beside_attention = f"{projection.rpartition('.')[0]}.{kind}_scale"
        return beside_attention if beside_attention in self.source.tensors else f"{projection}.{kind}_scale"

    def _holds(self, rule: Rule) -> bool:
        return all(source.name in self.weights for source in rule.sources)

    def _complaint(self, rule: Rule) -> str | None:
        inside = [source.name for source in rule.sources if source.name in self.weights]
        if inside and not rule.linear:
            return f"{inside[0]} is in FP8, and engines have {rule.module} in 16 bits"
        if inside and len(inside) < len(rule.sources):
            other = next(source.name for source in rule.sources if source.name not in self.weights)
            return f"engines fuse {inside[0]}, in FP8, and {other}, in 16 bits"
        return None

    def _asked_otherwise(self, wanted: Scheme, rules: list[Rule]) -> list[tuple[str, str]]:
        found, own = [], self.declared
        if wanted.weights not in ("none", own.weights):
            message = f"the source has {WORDS[own.weights]}, which are taken over and cannot become {wanted.weights}"
            found.append(("weights", message))
        elif wanted.weights != "none":
            kept = Scheme(wanted.weights, exclude=wanted.exclude)
            if odd := next((rule for rule in rules if self._holds(rule) and not kept.quantizes(rule)), None):
                found.append(("exclude", f"{odd.module} is in FP8 in the source, and stays so"))
        if wanted.kv_cache == "fp8" and own.kv_cache == "none":
            message = "the source has no scales for an FP8 KV cache, and what is quantized already is not calibrated"
            found.append(("kv_cache", message))
        return found


def read_prequantized(source: Source) -> Prequantized | None:
    """Return how a source is quantized, None where it is not.

    Raises CheckpointError for a quantization that cannot be taken over, and where the weights are not what it says.
    """
    declared = read_quant_config(source)
    fp8 = (name for name, tensor in source.tensors.items() if tensor.dtype == QUANTIZED)
    weights = frozenset(name for name in fp8 if name.endswith(".weight"))
    if weights and (declared is None or declared.weights == "none"):
        message = f"{min(weights)} is in FP8, and nothing says how it is scaled"
        hint = "there should be a hf_quant_config.json, or a quantization_config in config.json"
        raise CheckpointError(message, where=str(source.root), hint=hint)
    if declared is None or declared == QuantConfig(declared.tool):
        return None
    if declared.weights != "none" and not weights:
        message = f"{declared.tool} says that weights are in FP8, and none is"
        raise CheckpointError(message, where=str(source.root), hint=HINT)
    return Prequantized(source, declared, weights)


def scheme_of(existing: Prequantized | None, wanted: Scheme, config: ModelConfig, rules: list[Rule]) -> Scheme:
    """Return what a conversion makes of a source: what the recipe's `wanted` says, or what is there already.

    Raises CheckpointError where the one is not the other.
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
