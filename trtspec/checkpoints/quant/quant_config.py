# SPDX-License-Identifier: Apache-2.0
"""The quantization declared by a checkpoint: `hf_quant_config.json` (ModelOpt), or `quantization_config` in config.json
(ModelOpt, compressed-tensors, FP8 of transformers and AutoFP8).

Formats: NVIDIA/Model-Optimizer, modelopt/torch/export/convert_hf_config.py; vllm-project/compressed-tensors,
src/compressed_tensors/quantization/quant_config.py. Formats that engines cannot use are rejected with the reason.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from trtspec.checkpoints.model_config import ConfigReader
from trtspec.checkpoints.quant.scheme import ALGORITHMS
from trtspec.checkpoints.source import Source
from trtspec.core.diagnostics import quote_value
from trtspec.core.errors import CheckpointError

HINT = "convert the original model and set `weights: fp8` in the recipe to quantize it"
SUPPORTED = "only FP8 with one scale per tensor or one per row is supported"
SCHEMES = {algorithm: weights for weights, algorithm in ALGORITHMS.items()}
BLOCKS = "it has one scale per block of a weight"
DYNAMIC_ACTIVATIONS = "its activations are scaled at run time"
SEVERAL = "its modules have different formats"
# Reasons why a format is not supported; the first pattern found in its name counts.
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
    """The storage format of a model's weights and KV cache, independent of the tool that quantized them.

    "none", "fp8" or "fp8_rowwise"; for weights that only other engines support, the format's own name.
    """

    weights: str = "none"
    kv_cache: str = "none"


@dataclass(frozen=True)
class QuantConfig:
    """The quantization made by `tool`: `weights` is "none", "fp8" or "fp8_rowwise", `kv_cache` "none" or "fp8"."""

    tool: str
    weights: str = "none"
    kv_cache: str = "none"


def read_quant_config(source: Source) -> QuantConfig | None:
    """Return the quantization that a source declares, or None.

    Raises CheckpointError with the reason if it is not supported.
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

    Formats that the conversion does not support have the name in the source, e.g. "awq".
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
    """Return the FP8 format of compressed-tensors' groups, or None if not all of them are FP8."""
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
    """Return the recipe's name for the quantization of one group of modules."""
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
    """Return the recipe's name for a declared KV cache format: an algorithm, a compressed-tensors scheme, or None."""
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
