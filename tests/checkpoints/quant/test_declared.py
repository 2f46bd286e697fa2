# SPDX-License-Identifier: Apache-2.0
"""Unsupported quantizations are rejected with a reason before any weight is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests._support.tiny import make_llama
from tests.checkpoints.quant.compressed import compressed_tensors, declare, refused
from trtspec.checkpoints.prequantized import source_format
from trtspec.checkpoints.source import Source

ONLY = "only FP8 with one scale per tensor or one per row is supported"
BLOCKS = f"it has one scale per block of a weight; {ONLY}"
SEVERAL = compressed_tensors()
SEVERAL["config_groups"]["group_1"] = compressed_tensors("channel")["config_groups"]["group_0"]


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"quant_method": "awq", "bits": 4}, f"quantized with awq: it has integers with one scale per group; {ONLY}"),
        ({"quant_method": "gptq", "bits": 4}, "quantized with gptq: it has integers with one scale per group;"),
        ({"quant_method": "quanto"}, f"quantized with quanto: an unknown format; {ONLY}"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, f"quantized with fp8: {BLOCKS}"),
        ({"quant_method": "fp8", "activation_scheme": "dynamic"},
         "quantized with fp8: its activations are scaled at run time"),
        ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "quantized with NVFP4: it has 4-bit floats with one"),
        ({"quant_method": "compressed-tensors"}, "lacks config_groups"),
        (compressed_tensors(input_activations={"strategy": "tensor", "dynamic": True}),
         "FP8 weights by tensor and activations by tensor: its activations are scaled at run time"),
        (compressed_tensors("channel", input_activations={"strategy": "tensor", "dynamic": False}),
         "FP8 weights by channel and activations by tensor: no engine supports row scales for weights with one"),
        (compressed_tensors(weights={"strategy": "block"}),
         f"FP8 weights by block and activations by tensor: {BLOCKS}"),
        (compressed_tensors(weights={"type": "int"}), "quantized with 8-bit int weights: the format is not FP8"),
        (compressed_tensors(weights={"num_bits": 4, "type": "int"}), "quantized with 4-bit int weights"),
        (compressed_tensors(input_activations={"type": "int"}), "quantized with 8-bit int activations"),
        (compressed_tensors(input_activations=None), "it does not quantize exactly weights and their inputs"),
        (compressed_tensors(output_activations={"num_bits": 8}), "it does not quantize exactly weights and"),
        (SEVERAL, "quantized with several schemes: its modules have different formats"),
        (compressed_tensors() | {"sparsity_config": {"format": "sparse-24-bitmask"}},
         "quantized with sparse-24-bitmask: its weights are stored without their zeros"),
        (compressed_tensors() | {"kv_cache_scheme": {"num_bits": 8, "type": "int"}},
         'has a KV cache in {"num_bits": 8, "type": "int"}; only FP8 with one scale per layer is supported'),
    ],
)  # fmt: skip
def test_unsupported_quantization_in_config_json_is_rejected(
    document: dict[str, Any], message: str, tmp_path: Path
) -> None:
    refused(declare(make_llama(tmp_path / "hf"), document), message, "quantization_config", "weights: fp8")


@pytest.mark.parametrize(
    ("document", "weights"),
    [
        (compressed_tensors(), "fp8"),
        (compressed_tensors("channel"), "fp8_rowwise"),
        (compressed_tensors(input_activations={"strategy": "token", "dynamic": True}), "fp8"),
        (compressed_tensors(weights={"strategy": "block"}), "fp8_block"),
        (compressed_tensors(weights={"num_bits": 4, "type": "int"}), "compressed-tensors"),
    ],
)
def test_source_format_names_fp8_and_its_scale_granularity(document: dict[str, Any], weights: str) -> None:
    """Engines that run a source unconverted also accept formats that a conversion rejects."""
    source = Source(Path("/nowhere"), {"quantization_config": document}, {})
    assert source_format(source).weights == weights


@pytest.mark.parametrize(
    ("algorithm", "reason"),
    [
        ("NVFP4_AWQ", "it has 4-bit floats with one scale per block"),
        ("W4A8_AWQ", "it has integers with one scale per group"),
        ("W8A8_SQ_PER_CHANNEL", "it has 8-bit integers"),
        ("fp8_pb_wo", "it has one scale per block of a weight"),
        ("MXFP8", "it has one scale per block of a weight"),
        ("MIXED_PRECISION", "its modules have different formats"),
        ("FP6", "an unknown format"),
    ],
)
def test_unsupported_modelopt_algorithm_is_rejected(algorithm: str, reason: str, tmp_path: Path) -> None:
    source = make_llama(tmp_path / "hf")
    (source / "hf_quant_config.json").write_text(json.dumps({"quantization": {"quant_algo": algorithm}}))
    refused(source, f"quantized with {algorithm}: {reason}; {ONLY}", "hf_quant_config.json", "weights: fp8")


def test_quantization_config_without_quant_method_is_rejected(tmp_path: Path) -> None:
    refused(declare(make_llama(tmp_path / "hf"), {"bits": 4}), "quantization_config: lacks 'quant_method'")
