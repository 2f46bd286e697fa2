# SPDX-License-Identifier: Apache-2.0
"""Handling of quantized sources: the tensors that stay in 16 bits, and the supported requests of recipes."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests._support.tiny import convert, make_llama
from tests.checkpoints.quant.compressed import E4M3, compress, compressed_tensors, declare, edit, refused
from tests.checkpoints.quant.modelopt import make_model, random_case, save_source
from trtspec.checkpoints.prequantized import read_prequantized
from trtspec.checkpoints.quant_scheme import Scheme
from trtspec.checkpoints.source import load_source

Q = "model.layers.0.self_attn.q_proj"
K = "model.layers.0.self_attn.k_proj"


@pytest.mark.parametrize(
    ("document", "words"),
    [
        (compressed_tensors(), "FP8 weights with one scale for each tensor, by compressed-tensors"),
        (compressed_tensors("channel"), "FP8 weights with one scale for each row, by compressed-tensors"),
        (compressed_tensors(kv_cache=True),
         "FP8 weights with one scale for each tensor and an FP8 KV cache, by compressed-tensors"),
    ],
)  # fmt: skip
def test_quantization_has_a_readable_description(document: dict[str, Any], words: str, tmp_path: Path) -> None:
    existing = read_prequantized(load_source(compress(make_llama(tmp_path / "hf"), document)))
    assert existing is not None
    assert existing.describe() == words


def test_unquantized_source_has_no_quantization(tmp_path: Path) -> None:
    source = make_llama(tmp_path / "hf")
    assert read_prequantized(load_source(source)) is None
    (source / "hf_quant_config.json").write_text('{"quantization": {"quant_algo": null, "kv_cache_quant_algo": null}}')
    assert read_prequantized(load_source(source)) is None


@pytest.mark.parametrize(
    ("linear", "excluded"),
    [
        (r".*self_attn\.._proj\.weight",
         [*(f"transformer.layers.{n}.mlp.{name}" for n in range(2) for name in ("fc", "gate", "proj")), "lm_head"]),
        (r".*layers\.1\..*_proj\.weight",
         [f"transformer.layers.0.{n}" for n in ("attention.qkv", "attention.dense", "mlp.fc", "mlp.gate", "mlp.proj")]
         + ["lm_head"]),
        (r"(.*_proj|lm_head)\.weight", []),
    ],
)  # fmt: skip
def test_unquantized_modules_of_the_source_are_excluded(linear: str, excluded: list[str], tmp_path: Path) -> None:
    source = compress(make_llama(tmp_path / "hf"), compressed_tensors(), re.compile(linear))
    out = convert(source, tmp_path / "c")
    tensors, config = load_file(out / "rank0.safetensors"), json.loads((out / "config.json").read_text())
    assert config["quantization"]["exclude_modules"] == excluded
    assert (tensors["lm_head.weight"].dtype == E4M3) == ("lm_head" not in excluded)


def test_source_with_only_a_quantized_kv_cache_is_converted(tmp_path: Path) -> None:
    source = make_llama(tmp_path / "hf")
    config = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": None, "kv_cache_quant_algo": "FP8"}}
    (source / "hf_quant_config.json").write_text(json.dumps(config))
    names = [f"model.layers.{layer}.self_attn.{kind}_proj.{kind}_scale" for layer in range(2) for kind in "kv"]
    edit(source, lambda tensors: tensors.update({name: torch.tensor(2.0) for name in names}))
    out = convert(source, tmp_path / "c")
    ours, config = load_file(out / "rank0.safetensors"), json.loads((out / "config.json").read_text())
    assert config["quantization"] == {"quant_algo": None, "kv_cache_quant_algo": "FP8"}
    assert ours["transformer.layers.1.attention.kv_cache_scaling_factor"].item() == 2.0
    assert ours["transformer.layers.1.attention.qkv.weight"].dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("by", "linear", "message"),
    [
        ("tensor", r".*[qv]_proj\.weight", f"engines fuse {Q}.weight, in FP8, and {K}.weight, in 16 bits"),
        ("tensor", r".*gate_proj\.weight", "engines fuse mlp.fc and mlp.gate of a layer"),
        ("tensor", r".*(embed_tokens|_proj)\.weight",
         "model.embed_tokens.weight is in FP8, but engines require transformer.vocab_embedding in 16 bits"),
        ("channel", r"(.*_proj|lm_head)\.weight", "fp8_rowwise engines need lm_head in the model's dtype"),
    ],
)  # fmt: skip
def test_fp8_tensors_that_engines_cannot_load_are_rejected(by: str, linear: str, message: str, tmp_path: Path) -> None:
    source = compress(make_llama(tmp_path / "hf"), compressed_tensors(by), re.compile(linear))
    refused(source, message, "weights: fp8")


def test_rowwise_experts_are_rejected(tmp_path: Path) -> None:
    model = make_model(random_case("MixtralForCausalLM", 1, 1))
    source = compress(save_source(model, tmp_path / "hf"), compressed_tensors("channel"))
    refused(source, "TensorRT-LLM does not support fp8_rowwise for a mixture of experts")


@pytest.mark.parametrize(
    ("by", "kv_cache", "wanted"),
    [
        ("tensor", True, Scheme("fp8", "fp8")),
        ("tensor", True, Scheme("fp8", "none")),
        ("tensor", False, Scheme("fp8", exclude=("lm_head", "*router"))),
        ("channel", False, Scheme("fp8_rowwise")),
    ],
)
def test_scheme_equal_to_the_sources_gives_the_same_bytes(
    by: str, kv_cache: bool, wanted: Scheme, tmp_path: Path
) -> None:
    source = compress(make_llama(tmp_path / "hf"), compressed_tensors(by, kv_cache))
    expected = convert(source, tmp_path / "one")
    ours = convert(source, tmp_path / "two", scheme=wanted)
    for name in ("config.json", "rank0.safetensors"):
        assert (ours / name).read_bytes() == (expected / name).read_bytes()


@pytest.mark.parametrize(
    ("by", "wanted", "message"),
    [
        ("tensor", Scheme("fp8_rowwise"), "FP8 weights with one scale for each tensor, which are copied"),
        ("channel", Scheme("fp8"), "which are copied and cannot be converted to fp8"),
        ("tensor", Scheme(kv_cache="fp8"), "the source lacks scales for an FP8 KV cache, and quantized sources"),
        ("tensor", Scheme("fp8", exclude=("*attention*",)),
         "transformer.layers.0.attention.qkv is in FP8 in the source and cannot be excluded"),
    ],
)  # fmt: skip
def test_scheme_different_from_the_sources_is_rejected(by: str, wanted: Scheme, message: str, tmp_path: Path) -> None:
    refused(compress(make_llama(tmp_path / "hf"), compressed_tensors(by)), message, "weights: fp8", scheme=wanted)


def test_fp8_weights_without_a_quantization_config_are_rejected(tmp_path: Path) -> None:
    source = compress(make_llama(tmp_path / "hf"), compressed_tensors())
    declare(source, {})
    refused(source, "model.layers.0.mlp.down_proj.weight is in FP8, but its scaling is not declared", "hf_quant_config")


def test_quantization_config_without_fp8_weights_is_rejected(tmp_path: Path) -> None:
    source = declare(make_llama(tmp_path / "hf"), compressed_tensors())
    refused(source, "the compressed-tensors configuration declares FP8 weights, but the source lacks them")
