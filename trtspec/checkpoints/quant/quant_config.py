# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint says of its own quantization: `hf_quant_config.json` (ModelOpt), or `quantization_config` in
config.json (ModelOpt, compressed-tensors, FP8 of transformers and AutoFP8).

Formats: NVIDIA/Model-Optimizer, modelopt/torch/export/convert_hf_config.py; vllm-project/compressed-tensors,
src/compressed_tensors/quantization/quant_config.py. What engines cannot take over is refused here, with the reason.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from trtspec.checkpoints.model_config import ConfigReader
from trtspec.checkpoints.quant.scheme import ALGORITHMS
from trtspec.checkpoints.source import Source
from trtspec.core.diagnostics import written
from trtspec.core.errors import CheckpointError

HINT = "convert the model that it was made from; with `weights: fp8` the recipe quantizes it"
TAKEN = "only FP8 with one scale for each tensor, or with one for each row, can be taken over"
SCHEMES = {algorithm: weights for weights, algorithm in ALGORITHMS.items()}
BLOCKS = "a scale for each block of a weight"
MEASURED_LATER = "no scale of the activations, which are measured while the engine runs"
SEVERAL = "its modules are quantized in different ways"
# Why what is called so is not taken over; the first that is found in a name counts.
REASONS = (
    (r"MIXED", SEVERAL),
    (r"FP4", "4-bit floats with a scale for each block"),
    (r"AWQ|GPTQ|INT4|W4", "integers with a scale for each group"),
    (r"BLOCK|_PB_|MXFP8", BLOCKS),
    (r"INT8|W8A", "8-bit integers"),
)
# (how weights are scaled, how activations are, whether while the engine runs), in compressed-tensors' words
STRATEGIES = {("tensor", "tensor", False): "fp8", ("channel", "token", True): "fp8_rowwise"}


@dataclass(frozen=True)
class QuantFormat:
    """How a model's weights and KV cache are stored, whoever quantized them.

    "none", "fp8" or "fp8_rowwise", and for weights that only an engine of another kind can use the format's own name.
    """

    weights: str = "none"
    kv_cache: str = "none"


@dataclass(frozen=True)
class QuantConfig:
    """The quantization that `tool` made: `weights` is none, fp8 or fp8_rowwise, `kv_cache` none or fp8."""

    tool: str
    weights: str = "none"
    kv_cache: str = "none"


def read_quant_config(source: Source) -> QuantConfig | None:
    """Return what a source says of its quantization, None where it says nothing.

    Raises CheckpointError that says why for what cannot be taken over.
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
    """Return how a source is stored, for engines that run it as it is; it never raises.

    What a conversion cannot use goes by the name that the source gives it, as "awq".
    """
    try:
        declared = read_quant_config(source)
    except CheckpointError:
        return _named_format(source)
    return QuantFormat(declared.weights, declared.kv_cache) if declared else QuantFormat()


def _named_format(source: Source) -> QuantFormat:
    said = _section(source.quantization, "quantization") or _section(source.config, "quantization_config")
    name = str(said.get("quant_algo") or said.get("quant_method") or "quantized").lower()
    if name == "fp8" and said.get("weight_block_size"):
        name = "fp8_block"
    name = _grouped_format(said) or name
    cache = said.get("kv_cache_quant_algo") or said.get("kv_cache_scheme")
    return QuantFormat(name, "fp8" if cache else "none")


def _grouped_format(said: dict[str, Any]) -> str | None:
    """Return what compressed-tensors' groups call FP8, None where not all of them are."""
    groups = _section(said, "config_groups").values()
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
        reason = next(found, "which is not known here")
    return reader.refuse(f"quantized with {name}: {reason}; {TAKEN}", HINT)


def _modelopt(reader: ConfigReader) -> QuantConfig:
    said = reader.section("quantization") or reader
    algorithm = said.get("quant_algo", str, "")
    if algorithm not in SCHEMES:
        raise _refuse(said, algorithm)
    # hf_quant_config.json has the first key, config.json the second
    cache = said.values.get("kv_cache_quant_algo") or said.values.get("kv_cache_scheme")
    return QuantConfig("ModelOpt", SCHEMES[algorithm], _cache(said, cache))


def _compressed_tensors(reader: ConfigReader) -> QuantConfig:
    sparsity = reader.section("sparsity_config")
    if sparsity and (kind := sparsity.get("format", str, "dense")) != "dense":
        raise _refuse(sparsity, kind, "its weights are stored without their zeros")
    groups = reader.section("config_groups")
    if groups is None:
        raise reader.refuse("has no config_groups", HINT)
    found = {_group(group) for name in groups.values if (group := groups.section(name))}
    if len(found) != 1:
        raise _refuse(groups, "several schemes", SEVERAL)
    return QuantConfig("compressed-tensors", found.pop(), _cache(reader, reader.values.get("kv_cache_scheme")))


def _group(reader: ConfigReader) -> str:
    """Return what one group of modules is quantized with, as a recipe calls it."""
    weights, inputs = reader.section("weights"), reader.section("input_activations")
    if weights is None or inputs is None or reader.values.get("output_activations"):
        raise _refuse(reader, "compressed-tensors", "not weights and what they are multiplied with, but other parts")
    for what, part in (("weights", weights), ("activations", inputs)):
        kind = f"{part.positive('num_bits', 8)}-bit {part.get('type', str, 'int')}"
        if kind != "8-bit float":
            raise _refuse(part, f"{kind} {what}", "another format than FP8")
    dynamic = inputs.get("dynamic", bool, False)
    by = weights.get("strategy", str, "tensor")
    scaled = by, inputs.get("strategy", str, "token" if dynamic else "tensor"), dynamic
    if scaled not in STRATEGIES:
        raise _refuse(reader, f"FP8 weights by {by} and activations by {scaled[1]}", _why_unserved(by, dynamic))
    return STRATEGIES[scaled]


def _why_unserved(by: str, dynamic: bool) -> str:
    if by not in ("tensor", "channel"):
        return BLOCKS
    return MEASURED_LATER if dynamic else "no engine has a scale for each row and one for all activations"


def _plain_fp8(reader: ConfigReader) -> QuantConfig:
    if reader.values.get("weight_block_size"):
        raise _refuse(reader, "fp8", BLOCKS)
    if reader.get("activation_scheme", str, "dynamic") != "static":
        raise _refuse(reader, "fp8", MEASURED_LATER)
    return QuantConfig("AutoFP8", "fp8", _cache(reader, reader.values.get("kv_cache_scheme")))


def _cache(reader: ConfigReader, said: Any) -> str:
    """Return a recipe's word for what is said of the KV cache: an algorithm, a compressed-tensors scheme, nothing."""
    if not said:
        return "none"
    is_fp8 = said == "FP8"
    if isinstance(said, dict):
        wanted = {"num_bits": 8, "type": "float", "dynamic": False, "strategy": "tensor"}
        is_fp8 = all(said.get(key, value) == value for key, value in wanted.items())
    if not is_fp8:
        raise reader.refuse(
            f"has a KV cache in {written(said)}; only FP8 with one scale a layer can be taken over", HINT
        )
    return "fp8"
