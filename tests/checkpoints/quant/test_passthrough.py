# SPDX-License-Identifier: Apache-2.0
"""FP8 sources, tensor by tensor: ModelOpt's export for Hugging Face is converted to its export for TensorRT-LLM.

The values of other layouts are compared with the same arithmetic in torch.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests._support.tiny import SHAPE, convert, make_llama
from tests.checkpoints.quant.compressed import E4M3, Tensors, compress, compressed_tensors, declare, edit, refused
from tests.checkpoints.quant.modelopt import Case, export, make_model, quantize, random_case, save_source
from trtspec.checkpoints.sharding import ParallelMapping
from trtspec.checkpoints.source import load_source

# ModelOpt warns that this exporter was not tested with the installed versions.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]


def modelopt_case(architecture: str, weights: str, kv_cache: str, tensor: int = 1) -> Case:
    """Return a case of a float32 model with values that float16 can represent.

    ModelOpt divides a 16-bit weight in 16 bits when it exports for Hugging Face, and in 32 for TensorRT-LLM: both
    exports have the same values only for a float32 model.
    """
    shape = {**SHAPE, "head_dim": 8, "initializer_range": 0.2, "tie_word_embeddings": False}
    return Case(architecture, tensor, 1, "float32", "float16", shape, weights, kv_cache)


def quantized_model(case: Case) -> Any:
    model = make_model(case).half().float()
    quantize(model, case)
    return model


def equalize(model: Any) -> None:
    """Give the weights that engines fuse the same scale, as quantizers that export for engines do."""
    for layer in model.model.layers:
        attention, mlp = layer.self_attn, layer.mlp
        for fused in ((attention.q_proj, attention.k_proj, attention.v_proj), (mlp.gate_proj, mlp.up_proj)):
            largest = torch.stack([linear.weight_quantizer.amax for linear in fused]).max()
            for linear in fused:
                linear.weight_quantizer.amax = largest


@torch.inference_mode()
def export_unified(model: Any, root: Path) -> Path:
    from modelopt.torch.export import export_hf_checkpoint

    export_hf_checkpoint(model, export_dir=root)
    return root


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(torch.uint8)


def assert_same_bytes(ours: Path, theirs: Path) -> None:
    mine, wanted = load_file(ours), load_file(theirs)
    assert mine.keys() == wanted.keys()
    for name, tensor in wanted.items():
        assert (mine[name].dtype, mine[name].shape) == (tensor.dtype, tensor.shape), name
        assert torch.equal(bits(mine[name]), bits(tensor)), name


@pytest.mark.parametrize("tensor", [1, 2])
@pytest.mark.parametrize(
    ("architecture", "weights", "kv_cache"),
    [
        ("LlamaForCausalLM", "fp8", "fp8"),
        ("LlamaForCausalLM", "fp8_rowwise", "none"),
        ("Qwen2ForCausalLM", "fp8", "none"),
        ("Qwen3ForCausalLM", "fp8_rowwise", "fp8"),
    ],
)
def test_unified_export_converts_to_the_engine_export(
    architecture: str, weights: str, kv_cache: str, tensor: int, tmp_path: Path
) -> None:
    case = modelopt_case(architecture, weights, kv_cache, tensor)
    model = quantized_model(case)
    if weights == "fp8":
        equalize(model)
    export(copy.deepcopy(model), case, tmp_path / "theirs")
    source = export_unified(model, tmp_path / "hf")
    ours = convert(source, tmp_path / "ours", "float16", mapping=ParallelMapping(tensor))
    for rank in range(tensor):
        assert_same_bytes(ours / f"rank{rank}.safetensors", tmp_path / "theirs" / f"rank{rank}.safetensors")
    found, expected = (json.loads((root / "config.json").read_text()) for root in (ours, tmp_path / "theirs"))
    assert found["quantization"] == expected["quantization"]


def test_separate_scales_of_fused_weights_are_merged(tmp_path: Path) -> None:
    case = modelopt_case("LlamaForCausalLM", "fp8", "fp8")
    model = quantized_model(case)
    export(copy.deepcopy(model), case, tmp_path / "theirs")
    ours = load_file(convert(export_unified(model, tmp_path / "hf"), tmp_path / "c", "float16") / "rank0.safetensors")
    theirs = load_file(tmp_path / "theirs" / "rank0.safetensors")
    scales = [name for name in theirs if name.endswith("scaling_factor")]
    assert len(scales) == 13 * case.shape["num_hidden_layers"]
    assert all(torch.equal(ours[name], theirs[name]) for name in scales)
    # rounded twice instead of once: the difference is at most one step of e4m3
    weights = [name for name, tensor in theirs.items() if tensor.dtype == E4M3]
    steps = {name: (bits(ours[name]).int() - bits(theirs[name]).int()).abs().max().item() for name in weights}
    assert max(steps.values()) == 1
    alone = [name for name in weights if name.endswith(("dense.weight", "proj.weight"))]
    assert all(steps[name] == 0 for name in alone)


def fused(source: Tensors, *weights: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return concatenated weights at the largest of their scales, that scale, and the largest input scale."""
    own = [source[f"{name}_scale"].float() for name in weights]
    largest = torch.stack(own).max()
    values = [source[name].float() * scale for name, scale in zip(weights, own, strict=True)]
    patterns = torch.cat([bits((value / largest).to(E4M3)) for value in values]).view(E4M3)
    inputs = torch.stack([source[f"{name.removesuffix('weight')}input_scale"] for name in weights])
    return patterns, largest.reshape(1), inputs.max().reshape(1)


def assert_equal(ours: Tensors, module: str, expected: tuple[torch.Tensor, torch.Tensor, torch.Tensor]) -> None:
    for kind, tensor in zip(("weight", "weights_scaling_factor", "activation_scaling_factor"), expected, strict=True):
        found = ours[f"{module}.{kind}"]
        assert (found.dtype, found.shape) == (tensor.dtype, tensor.shape), f"{module}.{kind}"
        assert torch.equal(bits(found), bits(tensor)), f"{module}.{kind}"


def test_fused_weights_are_requantized_to_the_largest_scale(tmp_path: Path) -> None:
    source = compress(make_llama(tmp_path / "hf"), compressed_tensors(kv_cache=True))
    theirs = load_file(source / "model.safetensors")
    ours = load_file(convert(source, tmp_path / "c") / "rank0.safetensors")
    for layer in range(2):
        here, attention, mlp = (
            f"transformer.layers.{layer}",
            *(f"model.layers.{layer}.{n}" for n in ("self_attn", "mlp")),
        )
        assert_equal(ours, f"{here}.attention.qkv", fused(theirs, *(f"{attention}.{n}_proj.weight" for n in "qkv")))
        assert_equal(ours, f"{here}.attention.dense", fused(theirs, f"{attention}.o_proj.weight"))
        assert_equal(ours, f"{here}.mlp.proj", fused(theirs, f"{mlp}.down_proj.weight"))
        both, scale, inputs = fused(theirs, f"{mlp}.gate_proj.weight", f"{mlp}.up_proj.weight")
        for name, patterns in zip(("fc", "gate"), bits(both).chunk(2), strict=True):
            assert_equal(ours, f"{here}.mlp.{name}", (patterns.view(E4M3), scale, inputs))
        kept = theirs[f"{attention}.o_proj.weight"]
        assert torch.equal(bits(ours[f"{here}.attention.dense.weight"]), bits(kept))
        caches = [ours[f"{here}.attention.{kind}_cache_scaling_factor"].item() for kind in ("k", "v", "kv")]
        assert caches == [[1.0, 1.0, 1.0], [1.25, 3.5, 3.5]][layer]


def test_rowwise_weights_and_scales_are_copied_unchanged(tmp_path: Path) -> None:
    source = compress(make_llama(tmp_path / "hf", attention_bias=True), compressed_tensors("channel"))
    theirs = load_file(source / "model.safetensors")
    ours = load_file(convert(source, tmp_path / "c") / "rank0.safetensors")
    for layer in range(2):
        for module, names in (
            ("attention.qkv", [f"self_attn.{n}_proj" for n in "qkv"]),
            ("mlp.gate", ["mlp.up_proj"]),
            ("mlp.proj", ["mlp.down_proj"]),
        ):
            weights = [f"model.layers.{layer}.{name}.weight" for name in names]
            expected = torch.cat([bits(theirs[name]) for name in weights])
            scales = torch.cat([theirs[f"{name}_scale"].float().flatten() for name in weights])
            here = f"transformer.layers.{layer}.{module}"
            assert torch.equal(bits(ours[f"{here}.weight"]), expected)
            assert torch.equal(ours[f"{here}.per_channel_scale"], scales)


def test_experts_have_separate_weight_scales(tmp_path: Path) -> None:
    case = random_case("MixtralForCausalLM", 1, 1)
    source = compress(save_source(make_model(case), tmp_path / "hf"), compressed_tensors())
    theirs = load_file(source / "model.safetensors")
    out = convert(source, tmp_path / "c")
    ours = load_file(out / "rank0.safetensors")
    experts = [f"model.layers.0.block_sparse_moe.experts.{n}" for n in range(case.shape["num_local_experts"])]
    for module, names in (("fc", ("w3", "w1")), ("proj", ("w2",))):
        each = [fused(theirs, *(f"{expert}.{name}.weight" for name in names)) for expert in experts]
        patterns = torch.stack([bits(weight) for weight, _, _ in each]).view(E4M3)
        scales, inputs = torch.stack([scale for _, scale, _ in each]), torch.stack([scale for _, _, scale in each])
        assert_equal(ours, f"transformer.layers.0.mlp.{module}", (patterns, scales, inputs.max().reshape(1)))
    assert json.loads((out / "config.json").read_text())["quantization"]["exclude_modules"] == ["lm_head", "*router"]


def test_autofp8_with_static_activations_converts_like_compressed_tensors(tmp_path: Path) -> None:
    source = compress(make_llama(tmp_path / "hf"), compressed_tensors())
    expected = convert(source, tmp_path / "one") / "rank0.safetensors"
    declare(source, {"quant_method": "fp8", "activation_scheme": "static", "ignored_layers": ["lm_head"]})
    assert_same_bytes(convert(source, tmp_path / "two") / "rank0.safetensors", expected)


def test_source_bytes_are_read_once(tmp_path: Path) -> None:
    source = compress(make_llama(tmp_path / "hf"), compressed_tensors(kv_cache=True))
    read: list[int] = []
    convert(source, tmp_path / "c", on_bytes=read.append)
    assert sum(read) == load_source(source).nbytes


Q = "model.layers.0.self_attn.q_proj"
UP = "model.layers.1.mlp.up_proj"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop(f"{Q}.weight_scale"), f"{Q}.weight_scale: missing"),
        (lambda t: t.pop(f"{Q}.input_scale"), f"{Q}.input_scale: missing"),
        (lambda t: t.pop("model.layers.1.self_attn.k_scale"), "model.layers.1.self_attn.k_proj.k_scale: missing"),
        (lambda t: t.update({f"{Q}.weight_scale": torch.ones(32, 1)}),
         f"{Q}.weight_scale: [32, 1] in model.safetensors, but its scale must have the shape [] or [1]"),
        (lambda t: t.update({f"{Q}.input_scale": torch.ones(1, dtype=torch.int32)}),
         f"{Q}.input_scale: dtype I32 in model.safetensors, but scales must be BF16, F16, F32"),
        (lambda t: t.update({f"{Q}.weight_scale_inv": torch.ones(1)}), f"{Q}.weight_scale_inv: no rule uses it"),
        (lambda t: t.update({f"{Q}.weight_scale": torch.tensor([0.0])}),
         f"{Q}.weight_scale: 1 of 1 scales are not positive and finite in model.safetensors"),
        (lambda t: t.update({f"{Q}.input_scale": torch.tensor([-1.0])}), f"{Q}.input_scale: 1 of 1 scales are not"),
        (lambda t: t.update({f"{Q}.weight_scale": torch.tensor(float("nan"))}), f"{Q}.weight_scale: 1 of 1 scales are"),
        (lambda t: t.update({"model.layers.1.self_attn.v_scale": torch.tensor(float("inf"))}),
         "model.layers.1.self_attn.v_scale: 1 of 1 scales are not positive and finite"),
        (lambda t: t[f"{UP}.weight"].view(torch.uint8)[3, 4:6].fill_(0xFF), f"{UP}.weight: 2 NaN values"),
    ],
)  # fmt: skip
def test_invalid_tensor_scales_are_rejected(change: Callable[[Tensors], object], message: str, tmp_path: Path) -> None:
    source = compress(make_llama(tmp_path / "hf"), compressed_tensors(kv_cache=True))
    edit(source, change)
    refused(source, message)


def test_invalid_row_scales_are_rejected(tmp_path: Path) -> None:
    source = compress(make_llama(tmp_path / "hf"), compressed_tensors("channel"))
    edit(source, lambda tensors: tensors[f"{UP}.weight_scale"][5:8].zero_())
    refused(source, f"{UP}.weight_scale: 3 of 48 scales are not positive and finite")
    edit(source, lambda tensors: tensors.update({f"{UP}.weight_scale": torch.ones(1)}))
    refused(source, f"{UP}.weight_scale: [1] in model.safetensors, but its scale must have the shape [48] or [48, 1]")


def test_nan_weights_are_converted_with_allow_nonfinite(tmp_path: Path) -> None:
    source = compress(make_llama(tmp_path / "hf"), compressed_tensors())
    edit(source, lambda tensors: tensors[f"{UP}.weight"].view(torch.uint8)[3, 4:6].fill_(0x7F))
    ours = load_file(convert(source, tmp_path / "c", allow_nonfinite=True) / "rank0.safetensors")
    found = ours["transformer.layers.1.mlp.gate.weight"].float().isnan().nonzero()
    assert found.tolist() == [[3, 4], [3, 5]]
