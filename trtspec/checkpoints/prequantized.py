# SPDX-License-Identifier: Apache-2.0
"""Sources that are already quantized: their declared quantization, FP8 tensors and scales, and the resulting scheme.

The quantization is declared by `hf_quant_config.json` (ModelOpt), or `quantization_config` in config.json (ModelOpt,
compressed-tensors, FP8 of transformers and AutoFP8). Formats: NVIDIA/Model-Optimizer,
modelopt/torch/export/convert_hf_config.py; vllm-project/compressed-tensors,
src/compressed_tensors/quantization/quant_config.py. Formats that engines cannot use are rejected with the reason.

Quantized sources are copied as they are, without calibration. With `none` in the recipe, FP8 weights and an FP8 KV
cache stay FP8, and 16-bit tensors stay 16 bits. A recipe that requests another format is rejected, because the original
weights are not available.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from trtspec.checkpoints.model_config import ConfigReader, ModelConfig
from trtspec.checkpoints.quant_scheme import ALGORITHMS, Scheme, scheme_problems
from trtspec.checkpoints.rules import QUANTIZED, Quantized, Rule, select_rows
from trtspec.checkpoints.safetensors import TensorInfo
from trtspec.checkpoints.source import Source
from trtspec.checkpoints.trtllm import QKV
from trtspec.core.diagnostics import quote_value
from trtspec.core.errors import CheckpointError

HINT = "convert the original model and set `weights: fp8` in the recipe to quantize it"
SUPPORTED = "only FP8 with one scale per tensor or one per row is supported"
SCHEMES = {algorithm: weights for weights, algorithm in ALGORITHMS.items()}
BLOCKS = "it has one scale per block of a weight"
DYNAMIC_ACTIVATIONS = "its activations are scaled at run time"
SEVERAL = "its modules have different formats"
# Reasons why a format is not supported; the first pattern found in its name applies.
REASONS = (
    (r"MIXED", SEVERAL),
    (r"FP4", "it has 4-bit floats with one scale per block"),
    (r"AWQ|GPTQ|INT4|W4", "it has integers with one scale per group"),
    (r"BLOCK|_PB_|MXFP8", BLOCKS),
    (r"INT8|W8A", "it has 8-bit integers"),
)
# (strategy of weights, strategy of activations, whether dynamic), in compressed-tensors' terms
STRATEGIES = {("tensor", "tensor", False): "fp8", ("channel", "token", True): "fp8_rowwise"}


@dataclass(frozen=True)
class QuantFormat:
    """Storage format of a model's weights and KV cache, independent of the tool that quantized them.

    Each is "none", "fp8" or "fp8_rowwise". Weight formats that the conversion does not support keep the source's name
    for them, e.g. "awq".
    """

    weights: str = "none"
    kv_cache: str = "none"


@dataclass(frozen=True)
class QuantConfig:
    """Quantization made by `tool`: `weights` is "none", "fp8" or "fp8_rowwise", `kv_cache` is "none" or "fp8"."""

    tool: str
    weights: str = "none"
    kv_cache: str = "none"


def read_quant_config(source: Source) -> QuantConfig | None:
    """Return the quantization that a source declares, or None.

    Raises CheckpointError with the reason if the conversion does not support the format.
    """
    if source.quantization:
        return _modelopt(source.quantization_reader)
    document = source.reader.section("quantization_config")
    if document is None:
        return None
    method = document.get("quant_method", str)
    readers = {"modelopt": _modelopt, "compressed-tensors": _compressed_tensors, "fp8": _plain_fp8}
    if method not in readers:
        raise _refuse(document, method)
    return readers[method](document)


def source_format(source: Source) -> QuantFormat:
    """Return the storage format of a source, for engines that run it unconverted; never raises.

    Formats that the conversion does not support have the name that the source declares, e.g. "awq".
    """
    try:
        declared = read_quant_config(source)
    except CheckpointError:
        return _named_format(source)
    return QuantFormat(declared.weights, declared.kv_cache) if declared else QuantFormat()


def _named_format(source: Source) -> QuantFormat:
    declared = _section(source.quantization, "quantization") or _section(source.config, "quantization_config")
    name = str(declared.get("quant_algo") or declared.get("quant_method") or "quantized").lower()
    if name == "fp8" and declared.get("weight_block_size"):
        name = "fp8_block"
    name = _grouped_format(declared) or name
    cache = declared.get("kv_cache_quant_algo") or declared.get("kv_cache_scheme")
    return QuantFormat(name, "fp8" if cache else "none")


def _grouped_format(declared: dict[str, Any]) -> str | None:
    """Return "fp8" or "fp8_block" for the groups of a compressed-tensors config, or None if not all of them are FP8."""
    groups = _section(declared, "config_groups").values()
    weights = [_section(group, "weights") for group in groups if isinstance(group, dict)]
    if not weights or any((each.get("type"), each.get("num_bits")) != ("float", 8) for each in weights):
        return None
    return "fp8_block" if any(each.get("strategy") in ("block", "group") for each in weights) else "fp8"


def _section(document: dict[str, Any], key: str) -> dict[str, Any]:
    found = document.get(key)
    return found if isinstance(found, dict) else {}


def _refuse(reader: ConfigReader, name: str, reason: str | None = None) -> CheckpointError:
    if reason is None:
        found = (why for pattern, why in REASONS if re.search(pattern, name.upper()))
        reason = next(found, "an unknown format")
    return reader.refuse(f"quantized with {name}: {reason}; {SUPPORTED}", HINT)


def _modelopt(reader: ConfigReader) -> QuantConfig:
    section = reader.section("quantization") or reader
    algorithm = section.get("quant_algo", str, "")
    if algorithm not in SCHEMES:
        raise _refuse(section, algorithm)
    # hf_quant_config.json has the first key, config.json the second
    cache = section.values.get("kv_cache_quant_algo") or section.values.get("kv_cache_scheme")
    return QuantConfig("ModelOpt", SCHEMES[algorithm], _cache(section, cache))


def _compressed_tensors(reader: ConfigReader) -> QuantConfig:
    sparsity = reader.section("sparsity_config")
    if sparsity and (kind := sparsity.get("format", str, "dense")) != "dense":
        raise _refuse(sparsity, kind, "its weights are stored without their zeros")
    groups = reader.section("config_groups")
    if groups is None:
        raise reader.refuse("lacks config_groups", HINT)
    found = {_group(group) for name in groups.values if (group := groups.section(name))}
    if len(found) != 1:
        raise _refuse(groups, "several schemes", SEVERAL)
    return QuantConfig("compressed-tensors", found.pop(), _cache(reader, reader.values.get("kv_cache_scheme")))


def _group(reader: ConfigReader) -> str:
    """Return "fp8" or "fp8_rowwise" for one module group; raise CheckpointError for unsupported quantization."""
    weights, inputs = reader.section("weights"), reader.section("input_activations")
    if weights is None or inputs is None or reader.values.get("output_activations"):
        raise _refuse(reader, "compressed-tensors", "it does not quantize exactly weights and their inputs")
    for what, part in (("weights", weights), ("activations", inputs)):
        kind = f"{part.positive('num_bits', 8)}-bit {part.get('type', str, 'int')}"
        if kind != "8-bit float":
            raise _refuse(part, f"{kind} {what}", "the format is not FP8")
    dynamic = inputs.get("dynamic", bool, False)
    by = weights.get("strategy", str, "tensor")
    scaled = by, inputs.get("strategy", str, "token" if dynamic else "tensor"), dynamic
    if scaled not in STRATEGIES:
        raise _refuse(reader, f"FP8 weights by {by} and activations by {scaled[1]}", _why_unserved(by, dynamic))
    return STRATEGIES[scaled]


def _why_unserved(by: str, dynamic: bool) -> str:
    if by not in ("tensor", "channel"):
        return BLOCKS
    return (
        DYNAMIC_ACTIVATIONS
        if dynamic
        else "no engine supports row scales for weights with one scale for all activations"
    )


def _plain_fp8(reader: ConfigReader) -> QuantConfig:
    if reader.values.get("weight_block_size"):
        raise _refuse(reader, "fp8", BLOCKS)
    if reader.get("activation_scheme", str, "dynamic") != "static":
        raise _refuse(reader, "fp8", DYNAMIC_ACTIVATIONS)
    return QuantConfig("AutoFP8", "fp8", _cache(reader, reader.values.get("kv_cache_scheme")))


def _cache(reader: ConfigReader, declared: Any) -> str:
    """Return "fp8" or "none" for a declared KV-cache format; raise CheckpointError if it is not supported.

    `declared` is an algorithm's name, a compressed-tensors scheme, or None.
    """
    if not declared:
        return "none"
    is_fp8 = declared == "FP8"
    if isinstance(declared, dict):
        expected = {"num_bits": 8, "type": "float", "dynamic": False, "strategy": "tensor"}
        is_fp8 = all(declared.get(key, value) == value for key, value in expected.items())
    if not is_fp8:
        raise reader.refuse(
            f"has a KV cache in {quote_value(declared)}; only FP8 with one scale per layer is supported", HINT
        )
    return "fp8"


ONE_VALUE: tuple[tuple[int, ...], ...] = ((), (1,))
WORDS = {
    "none": "weights in 16 bits",
    "fp8": "FP8 weights with one scale for each tensor",
    "fp8_rowwise": "FP8 weights with one scale for each row",
}


@dataclass(frozen=True)
class Prequantized:
    """A quantized source, its declared quantization, and the names of its FP8 weights.

    FP8 weights are identified by their dtype, because quantization configs list excluded modules by different kinds of
    patterns or not at all.
    """

    source: Source
    declared: QuantConfig
    weights: frozenset[str]

    def weight_scale(self, weight: str) -> TensorInfo:
        return self.source.tensors[_weight_scale(weight)]

    def row_scales(self, rule: Rule) -> tuple[TensorInfo, ...]:
        """Return the row scales of a rule's source tensors, in the order of those tensors."""
        return tuple(select_rows(source, self.weight_scale(source.name)) for source in rule.sources)

    def input_scale(self, weight: str) -> TensorInfo:
        return self.source.tensors[_input_scale(weight)]

    def cache_scale(self, weight: str, kind: str) -> TensorInfo:
        """Return the scale tensor of the key ("k") or value ("v") cache that `weight` projects to."""
        return self.source.tensors[self._cache_scale(weight, kind)]

    def tensors(self, rules: list[Rule]) -> Quantized:
        """Return the FP8 weights and the accepted shapes of their scales, in the form that `rules.match` requires."""
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
        """Return the scheme that keeps every tensor in its source format."""
        if self.declared.weights == "none":
            return Scheme(kv_cache=self.declared.kv_cache)
        left_out = tuple(rule.module for rule in rules if rule.linear and not self._holds(rule))
        return Scheme(self.declared.weights, self.declared.kv_cache, left_out)

    def describe(self) -> str:
        cache = " and an FP8 KV cache" if self.declared.kv_cache == "fp8" else ""
        return f"{WORDS[self.declared.weights]}{cache}, by {self.declared.tool}"

    def problems(self, wanted: Scheme, config: ModelConfig, rules: list[Rule]) -> list[tuple[str, str]]:
        """Return the reasons why the source cannot be copied or conflicts with the recipe's scheme `wanted`.

        Each is (key below `quantization`, message).
        """
        own = scheme_problems(self.scheme(rules), config, rules)
        return [
            *self._conflicts(wanted, rules),
            *(("weights", problem) for rule in rules if (problem := self._rule_problem(rule))),
            *(("weights", problem) for _, problem in own),
        ]

    def _cache_scale(self, weight: str, kind: str) -> str:
        """Return the name of a scale, next to the projection (ModelOpt) or to the attention (compressed-tensors)."""
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
    """Return the scheme of the converted model: the recipe's scheme `wanted`, or a quantized source's own.

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
