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

from trtspec.checkpoint.model_config import ConfigReader
from trtspec.checkpoint.source import MAX_CONFIG_BYTES, QUANTIZATION, Source, read_json
from trtspec.checkpoint.untrusted import inside
from trtspec.errors import CheckpointError
from trtspec.quant.scheme import ALGORITHMS

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
class Declared:
    """The quantization that `tool` made: `weights` is none, fp8 or fp8_rowwise, `kv_cache` none or fp8."""

    tool: str
    weights: str = "none"
    kv_cache: str = "none"


def read_declared(source: Source) -> Declared | None:
    """Return what a source says of its quantization, None where it says nothing.

    Raises CheckpointError that says why for what cannot be taken over.
    """
    path = inside(source.root, QUANTIZATION)
    if path.exists():
        return _modelopt(ConfigReader(read_json(path, MAX_CONFIG_BYTES), str(path)))
    document = source.reader.section("quantization_config")
    if document is None:
        return None
    method = document.get("quant_method", str)
    readers = {"modelopt": _modelopt, "compressed-tensors": _compressed_tensors, "fp8": _plain_fp8}
    if method not in readers:
        raise _refuse(document, method)
    return readers[method](document)


def _refuse(reader: ConfigReader, name: str, reason: str | None = None) -> CheckpointError:
    if reason is None:
        found = (why for pattern, why in REASONS if re.search(pattern, name.upper()))
        reason = next(found, "which is not known here")
    return reader.refuse(f"quantized with {name}: {reason}; {TAKEN}", HINT)


def _modelopt(reader: ConfigReader) -> Declared:
    said = reader.section("quantization") or reader
    algorithm = said.get("quant_algo", str, "")
    if algorithm not in SCHEMES:
        raise _refuse(said, algorithm)
    # hf_quant_config.json has the first key, config.json the second
    cache = said.values.get("kv_cache_quant_algo") or said.values.get("kv_cache_scheme")
    return Declared("ModelOpt", SCHEMES[algorithm], _cache(said, cache))


def _compressed_tensors(reader: ConfigReader) -> Declared:
    sparsity = reader.section("sparsity_config")
    if sparsity and (kind := sparsity.get("format", str, "dense")) != "dense":
        raise _refuse(sparsity, kind, "its weights are stored without their zeros")
    groups = reader.section("config_groups")
    if groups is None:
        raise reader.refuse("has no config_groups", HINT)
    found = {_group(group) for name in groups.values if (group := groups.section(name))}
    if len(found) != 1:
        raise _refuse(groups, "several schemes", SEVERAL)
    return Declared("compressed-tensors", found.pop(), _cache(reader, reader.values.get("kv_cache_scheme")))


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


def _plain_fp8(reader: ConfigReader) -> Declared:
    if reader.values.get("weight_block_size"):
        raise _refuse(reader, "fp8", BLOCKS)
    if reader.get("activation_scheme", str, "dynamic") != "static":
        raise _refuse(reader, "fp8", MEASURED_LATER)
    return Declared("AutoFP8", "fp8", _cache(reader, reader.values.get("kv_cache_scheme")))


def _cache(reader: ConfigReader, said: Any) -> str:
    """Return a recipe's word for what is said of the KV cache: an algorithm, a compressed-tensors scheme, nothing."""
    if not said:
        return "none"
    is_fp8 = said == "FP8"
    if isinstance(said, dict):
        wanted = {"num_bits": 8, "type": "float", "dynamic": False, "strategy": "tensor"}
        is_fp8 = all(said.get(key, value) == value for key, value in wanted.items())
    if not is_fp8:
        raise reader.refuse(f"has a KV cache in {said!r}; only FP8 with one scale a layer can be taken over", HINT)
    return "fp8"
