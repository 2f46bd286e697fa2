# SPDX-License-Identifier: Apache-2.0
"""FP8 checkpoints against explicit W8A8 arithmetic on transformers' model, and against the unquantized model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import DynamicCache

from tests._support.tiny import convert, make_model, reference_model
from trtspec.checkpoints.conversion import Activations
from trtspec.checkpoints.quant_scheme import Scheme
from trtspec.checkpoints.sharding import ParallelMapping
from trtspec.checkpoints.trtllm import load_checkpoint
from trtspec.core.errors import CheckpointError
from trtspec.engine.device import compute_dtype
from trtspec.engine.model.decoder import Decoder
from trtspec.engine.model.layers import round_rows_to_e4m3, round_to_e4m3

Tensors = dict[str, Tensor]
Round = Callable[[Tensor, Tensor | None], Tensor]

KEY_AMAX, VALUE_AMAX = 448.0 * 1.5, 448.0 * 3
MODULES = {
    "attention.qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "attention.dense": ("self_attn.o_proj",),
    "mlp.fc": ("mlp.gate_proj",),
    "mlp.gate": ("mlp.up_proj",),
    "mlp.proj": ("mlp.down_proj",),
}
SHAPE: dict[str, Any] = {"hidden_size": 64, "num_attention_heads": 8, "num_key_value_heads": 2}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"attention_bias": True, "mlp_bias": True},
    "mistral": {},
    "mixtral": {"num_experts_per_tok": 2, "num_local_experts": 3},
    "qwen2": {"tie_word_embeddings": True},
    "qwen3": {"num_key_value_heads": 8},
}
ROWS, LENGTH = 24, 6


def tokens_of() -> Tensor:
    return torch.randint(0, 64, (ROWS, LENGTH), generator=torch.Generator().manual_seed(0))


def e4m3(values: Tensor) -> Tensor:
    """Round values to float8_e4m3; torch's cast turns too large values into NaN, the engine clamps them."""
    return values.clamp(-448, 448).to(torch.float8_e4m3fn).float()


def round_static(rows: Tensor, scale: Tensor | None) -> Tensor:
    assert scale is not None
    return e4m3(rows / scale) * scale


def round_rows(rows: Tensor, scale: Tensor | None) -> Tensor:
    assert scale is None
    rows = rows.clamp(-1200, 1200)
    own = rows.abs().amax(-1, keepdim=True).clamp_min(1 / 512) / 448
    return e4m3(rows / own) * own


ROUNDINGS: dict[str, Round] = {"fp8": round_static, "fp8_rowwise": round_rows}


def dequantized(tensors: Tensors, module: str) -> Tensor:
    """Return a module's weight from the file: FP8 values times the scale of the tensor, the expert or the row."""
    scale = tensors.get(f"{module}.weights_scaling_factor", tensors.get(f"{module}.per_channel_scale"))
    assert scale is not None
    return tensors[f"{module}.weight"].float() * scale.unsqueeze(-1)


class Experts(nn.Module):
    """Mixtral's experts with rounded inputs."""

    def __init__(self, tensors: Tensors, prefix: str, round_: Round) -> None:
        super().__init__()
        self.fc, self.proj = (dequantized(tensors, f"{prefix}.{name}") for name in ("fc", "proj"))
        self.scales = [tensors[f"{prefix}.{name}.activation_scaling_factor"] for name in ("fc", "proj")]
        self.round = round_

    def forward(self, hidden: Tensor, picked: Tensor, weights: Tensor) -> Tensor:
        mixed, rows = torch.zeros_like(hidden), self.round(hidden, self.scales[0])
        for token, places in enumerate(picked.tolist()):
            for place, expert in enumerate(places):
                linear, activated = F.linear(rows[token], self.fc[expert]).chunk(2)
                inner = self.round(F.silu(activated) * linear, self.scales[1])
                mixed[token] += weights[token, place] * F.linear(inner, self.proj[expert])
        return mixed


def spell_out(model: Any, tensors: Tensors, round_: Round) -> None:
    """Load the weights of the file into transformers' model, and round the inputs of its matrices."""

    def replace(names: tuple[str, ...], root: nn.Module, module: str) -> None:
        weights = dequantized(tensors, module).split([root.get_submodule(name).out_features for name in names])
        scale = tensors.get(f"{module}.activation_scaling_factor")
        for name, weight in zip(names, weights, strict=True):
            linear = root.get_submodule(name)
            linear.weight = nn.Parameter(weight)
            linear.register_forward_pre_hook(lambda _, inputs: (round_(inputs[0], scale),))

    for number, layer in enumerate(model.model.layers):
        prefix = f"transformer.layers.{number}"
        for module, names in MODULES.items():
            if hasattr(layer.mlp, "experts") and module.startswith("mlp"):
                layer.mlp.experts = Experts(tensors, f"{prefix}.mlp", round_)
            else:
                replace(names, layer, f"{prefix}.{module}")
    if "lm_head.weights_scaling_factor" in tensors:
        replace(("lm_head",), model, "lm_head")


class RoundedCache(DynamicCache):
    """A cache that rounds keys and values to float8_e4m3 with one scale."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = torch.tensor(scale)

    def update(self, keys: Tensor, values: Tensor, layer: int, *rest: Any) -> tuple[Tensor, Tensor]:
        return super().update(round_static(keys, self.scale), round_static(values, self.scale), layer, *rest)


def measure(source: Path, share: float) -> Activations:
    """Return `share` of the largest magnitudes of transformers' model on the tokens; the cache's are arbitrary."""
    model, found = reference_model(source), Activations()

    def watch(module: str, inner: nn.Module) -> None:
        def note(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
            found.inputs[module] = share * inputs[0].abs().max().item()

        inner.register_forward_pre_hook(note)

    watch("lm_head", model.lm_head)
    for number, layer in enumerate(model.model.layers):
        prefix = f"transformer.layers.{number}"
        watch(f"{prefix}.attention.qkv", layer.self_attn.q_proj)
        watch(f"{prefix}.attention.dense", layer.self_attn.o_proj)
        watch(f"{prefix}.mlp.fc", layer.mlp)
        watch(f"{prefix}.mlp.gate", layer.mlp)
        if hasattr(layer.mlp, "experts"):  # the values between their two matrices are not the input of a module
            found.inputs[f"{prefix}.mlp.proj"] = share * 8.0
        else:
            watch(f"{prefix}.mlp.proj", layer.mlp.down_proj)
        found.keys[f"{prefix}.attention"], found.values[f"{prefix}.attention"] = KEY_AMAX, VALUE_AMAX
    model(tokens_of())
    return found


def logits(root: Path) -> Tensor:
    decoder = Decoder(load_checkpoint(root), ROWS, LENGTH, torch.device("cpu"), torch.float32)
    return decoder.forward(tokens_of(), decoder.windows.chain([0] * ROWS, LENGTH)).view(ROWS, LENGTH, -1)


SCHEMES = {
    "fp8": Scheme("fp8"),
    "fp8, head too": Scheme("fp8", exclude=()),
    "fp8 rowwise": Scheme("fp8_rowwise"),
    "fp8, cache too": Scheme("fp8", "fp8"),
    "cache alone": Scheme("none", "fp8"),
}
IMPOSSIBLE = [("mixtral", "fp8 rowwise"), ("qwen2", "fp8, head too")]
CASES = [(family, name) for family in MODELS for name in SCHEMES if (family, name) not in IMPOSSIBLE]


@pytest.mark.integration
@pytest.mark.parametrize(("family", "name"), CASES)
@torch.inference_mode()
def test_logits_equal_explicit_w8a8_arithmetic(family: str, name: str, tmp_path: Path) -> None:
    """Rows agree to float32's rounding, except the few with a value on the edge between two FP8 numbers.

    Activations are scaled by half of their maximum, so that some are clamped.
    """
    scheme = SCHEMES[name]
    source = make_model(tmp_path / "hf", family, **SHAPE | MODELS[family])
    root = convert(source, tmp_path / "c", scheme=scheme, activations=measure(source, 0.5))
    model = reference_model(source)
    if scheme.weights != "none":
        spell_out(model, load_file(root / "rank0.safetensors"), ROUNDINGS[scheme.weights])
    cache = RoundedCache(VALUE_AMAX / 448) if scheme.kv_cache == "fp8" else None
    expected = model(tokens_of(), past_key_values=cache, use_cache=cache is not None).logits
    off = (logits(root) - expected).abs().amax((1, 2)) / expected.abs().max()
    assert (off < 1e-5).sum() >= ROWS - 4
    assert off.max() < 0.05


@pytest.mark.integration
@pytest.mark.parametrize(("family", "name"), CASES)
@torch.inference_mode()
def test_fp8_error_is_within_the_range_expected_of_three_mantissa_bits(family: str, name: str, tmp_path: Path) -> None:
    """An FP8 number is off by at most 2^-4 and by 2.6 % on average; two layers of such roundings make 5 to 20 %.

    The median is used, because a token's logits differ completely if rounding changes the choice of experts.
    """
    source = make_model(tmp_path / "hf", family, **SHAPE | MODELS[family])
    root = convert(source, tmp_path / "c", scheme=SCHEMES[name], activations=measure(source, 1.0))
    plain = reference_model(source)(tokens_of()).logits
    error = ((logits(root) - plain).norm(dim=-1) / plain.norm(dim=-1)).median()
    assert 0.02 < error < 0.25


@pytest.mark.integration
@pytest.mark.parametrize("family", MODELS)
@torch.inference_mode()
def test_logits_are_independent_of_the_number_of_ranks(family: str, tmp_path: Path) -> None:
    source = make_model(tmp_path / "hf", family, **SHAPE | MODELS[family])
    options: dict[str, Any] = {"scheme": Scheme("fp8", "fp8"), "activations": measure(source, 1.0)}
    expected = logits(convert(source, tmp_path / "whole", **options))
    for mapping in (ParallelMapping(2, 2), ParallelMapping(8, 1)):
        assert torch.equal(logits(convert(source, tmp_path / f"{mapping.ranks}", mapping=mapping, **options)), expected)


@pytest.fixture
def quantized(tmp_path: Path) -> Path:
    source = make_model(tmp_path / "hf", "llama", **SHAPE)
    return convert(source, tmp_path / "c", scheme=Scheme("fp8", "fp8"), activations=measure(source, 1.0))


def edit(root: Path, change: Callable[[Tensors], None]) -> None:
    tensors = load_file(root / "rank0.safetensors")
    change(tensors)
    save_file(tensors, root / "rank0.safetensors")


ATTENTION = "transformer.layers.0.attention"


@pytest.mark.integration
@torch.inference_mode()
def test_kv_cache_scale_is_the_larger_of_two_or_the_common_scale(quantized: Path) -> None:
    """The values' scale is the larger one; without both, the common scale is used, and a larger one has an effect."""
    expected = logits(quantized)
    scales = {kind: f"{ATTENTION}.{kind}_cache_scaling_factor" for kind in ("k", "v", "kv")}
    edit(quantized, lambda tensors: tensors.update({scales["k"]: tensors[scales["k"]] / 2}))
    assert torch.equal(logits(quantized), expected)
    edit(quantized, lambda tensors: [tensors.pop(scales[kind]) for kind in ("k", "v")])
    assert torch.equal(logits(quantized), expected)
    edit(quantized, lambda tensors: tensors.update({scales["kv"]: tensors[scales["kv"]] * 1.1}))
    assert not torch.equal(logits(quantized), expected)


@pytest.mark.integration
@pytest.mark.parametrize(
    "name", ["qkv.weights_scaling_factor", "dense.activation_scaling_factor", "kv_cache_scaling_factor"]
)
@torch.inference_mode()
def test_missing_scale_is_an_error_with_its_name(name: str, quantized: Path) -> None:
    lost = [f"{ATTENTION}.{kind}_cache_scaling_factor" for kind in ("k", "v")] if name.startswith("kv") else []
    edit(quantized, lambda tensors: [tensors.pop(key) for key in (*lost, f"{ATTENTION}.{name}")])
    with pytest.raises(CheckpointError) as refused:
        logits(quantized)
    assert (
        str(refused.value).partition("\nhint: ")[0]
        == f"{quantized / 'rank0.safetensors'}: the tensor '{ATTENTION}.{name}' is missing"
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_values_are_rounded_and_clamped_to_e4m3(dtype: torch.dtype) -> None:
    """Values beyond the largest number are clamped in both directions; in bfloat16 the product is rounded again."""
    values = torch.cat([torch.randn(1000), torch.tensor([0.0, 1e-6, 1e4, -1e4])]).to(dtype)
    scale = torch.tensor(0.01)
    expected = (e4m3(values.float() / scale) * scale).to(dtype)
    assert torch.equal(round_to_e4m3(values, scale), expected)
    assert torch.equal(expected[-2:], torch.stack([448 * scale, -448 * scale]).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_are_rounded_to_e4m3_with_per_row_scales(dtype: torch.dtype) -> None:
    """A row's largest value is kept, up to 1200; a row of tiny values, which gets the minimum scale, becomes zero."""
    rows = (torch.randn(5, 64) * torch.tensor([[1.0], [1e-2], [1e3], [1e-9], [0.0]])).to(dtype)
    rows[2, 0] = 5000.0
    rounded = round_rows_to_e4m3(rows)
    assert rounded.dtype == dtype
    torch.testing.assert_close(rounded[:2].abs().amax(-1), rows[:2].abs().amax(-1), rtol=2**-8, atol=0)
    torch.testing.assert_close(rounded[:2], rows[:2], rtol=2**-4 + 2**-8, atol=1e-4)
    assert rounded[2, 0] == 1200.0
    assert rounded[3:].count_nonzero() == 0


@pytest.mark.parametrize("scheme", [Scheme(), Scheme("fp8_rowwise"), Scheme(kv_cache="fp8")], ids=str)
def test_auto_compute_dtype_is_float64_for_fp8_checkpoints_on_the_cpu(scheme: Scheme, tmp_path: Path) -> None:
    source = make_model(tmp_path / "hf", "llama")
    root = convert(source, tmp_path / "c", scheme=scheme, activations=measure(source, 1.0))
    expected = torch.float32 if scheme == Scheme() else torch.float64
    assert compute_dtype("auto", torch.device("cpu"), load_checkpoint(root)) == expected
    assert compute_dtype("float32", torch.device("cpu"), load_checkpoint(root)) == torch.float32
