# SPDX-License-Identifier: Apache-2.0
"""The conversion equals NVIDIA's exporter: every tensor bit for bit, and every key of config.json.

The differences and their reasons are in tests/checkpoints/quant/quirks.py.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests._support.tiny import LLAMA3_ROPE, convert
from tests.checkpoints.division import divided
from tests.checkpoints.quant import modelopt
from tests.checkpoints.quant.modelopt import (
    DECODERS,
    LAYOUTS,
    Case,
    export,
    make_model,
    measured,
    quantize,
    random_case,
    save_source,
)
from tests.checkpoints.quant.quirks import DIFFERS, OURS, QUIRKS, REFUSES, THEIRS
from trtspec.checkpoints.conversion import Activations
from trtspec.checkpoints.quant_scheme import Scheme
from trtspec.checkpoints.sharding import ParallelMapping

# ModelOpt warns that this exporter, TensorRT-LLM's checkpoint and large activations are deprecated.
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.slow]

Tensors = dict[str, torch.Tensor]
DENSE = [name for name in DECODERS if name != "MixtralForCausalLM"]
# Architectures that both divide in the same way.
DIVIDED = [name for name in DECODERS if name != "Phi3ForCausalLM"]


@dataclass(frozen=True)
class Checkpoint:
    """The files of a checkpoint: config.json with its sections' keys joined by dots, and each rank's tensors."""

    config: dict[str, Any]
    ranks: list[Tensors]


@dataclass(frozen=True)
class Exports:
    """One model's checkpoints: NVIDIA's and trtspec's."""

    theirs: Checkpoint
    ours: Checkpoint


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Case], Exports]:
    """A function that converts the model of a case with both; a case is converted once."""
    made: dict[str, Exports] = {}

    def make(case: Case) -> Exports:
        if repr(case) not in made:
            made[repr(case)] = export_both(case, make_model(case), tmp_path_factory.mktemp("case"))
        return made[repr(case)]

    return make


def export_both(case: Case, model: Any, root: Path) -> Exports:
    """Convert `model` with both into directories below `root`, with the activations measured by ModelOpt."""
    source, activations = save_source(model, root / "source"), Activations()
    if case.weights != "none" or case.kv_cache != "none":
        quantize(model, case)
        activations = measured(model)
    export(model, case, root / "theirs")
    return Exports(load(root / "theirs"), load(convert_case(case, source, root / "ours", activations)))


def convert_case(case: Case, source: Path, out: Path, activations: Activations | None = None) -> Path:
    """Convert `source` according to a case."""
    mapping = ParallelMapping(case.tensor, case.pipeline)
    scheme = Scheme(case.weights, case.kv_cache, case.exclude)
    return convert(source, out, case.dtype, mapping=mapping, scheme=scheme, activations=activations)


def load(root: Path) -> Checkpoint:
    """Read a checkpoint of any exporter."""
    config = json.loads((root / "config.json").read_text())
    ranks = range(config["mapping"]["world_size"])
    return Checkpoint(flat(config), [load_file(root / f"rank{rank}.safetensors") for rank in ranks])


def flat(config: dict[str, Any]) -> dict[str, Any]:
    """Join the keys of the sections that both exporters write."""
    sections = {name: config.pop(name) for name in ("mapping", "quantization", "moe") if name in config}
    return config | {f"{name}.{key}": value for name, section in sections.items() for key, value in section.items()}


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor's bytes."""
    return tensor.view(torch.uint8)


def assert_same_tensors(ours: list[Tensors], theirs: list[Tensors]) -> None:
    """Assert the same names, dtypes, shapes and bits on every rank."""
    assert len(ours) == len(theirs)
    for rank, (mine, other) in enumerate(zip(ours, theirs, strict=True)):
        assert mine.keys() == other.keys(), f"rank {rank}"
        for name, tensor in mine.items():
            assert (tensor.dtype, tensor.shape) == (other[name].dtype, other[name].shape), f"rank {rank}: {name}"
            assert torch.equal(bits(tensor), bits(other[name])), f"rank {rank}: {name}"


def per_row(architecture: str, tensor: int, pipeline: int, kv_cache: str) -> Case:
    """Return a case of FP8 by rows, for which ModelOpt requires at least one key head per rank."""
    quantization = {"weights": "fp8_rowwise", "kv_cache": kv_cache}
    drawn = (random_case(architecture, tensor, pipeline, seed, **quantization) for seed in range(100))
    return next(case for case in drawn if case.shape["num_key_value_heads"] >= tensor)


def shaped(case: Case, **shape: Any) -> Case:
    """Return a case with other numbers in config.json."""
    return replace(case, shape=case.shape | shape)


def is_divided_alike(architecture: str, tensor: int) -> bool:
    """Return whether both divide a model in the same way over `tensor` ranks."""
    return tensor == 1 or architecture in DIVIDED


PLAIN = [
    random_case(name, *layout, seed)
    for name in DECODERS
    for layout in LAYOUTS
    for seed in range(2)
    if is_divided_alike(name, layout[0])
]
FP8 = [
    random_case(name, *layout, weights="fp8", kv_cache=kv_cache)
    for name in DECODERS
    for layout, kv_cache in (((1, 1), "none"), ((1, 2), "fp8"), ((2, 2), "fp8"), ((4, 1), "fp8"))
    if is_divided_alike(name, layout[0]) and (layout != (1, 2) or name not in DIVIDED)
]
BY_ROW = [
    per_row(name, *how)
    for name in DENSE
    for how in ((1, 2, "none"), (2, 1, "fp8"), (4, 1, "none"))
    if is_divided_alike(name, how[0])
]
CACHE_ONLY = [random_case(name, 2, 1, kv_cache="fp8") for name in ("LlamaForCausalLM", "Qwen3ForCausalLM")]
CASES = PLAIN + FP8 + BY_ROW + CACHE_ONLY


def differences(exports: Exports) -> dict[str, str]:
    """Return the keys of config.json that differ, with the kind of difference."""
    theirs, ours = exports.theirs.config, exports.ours.config
    found = {key: DIFFERS for key in theirs.keys() & ours.keys() if theirs[key] != ours[key]}
    return found | dict.fromkeys(theirs.keys() - ours.keys(), THEIRS) | dict.fromkeys(ours.keys() - theirs.keys(), OURS)


# Properties that the random cases must cover.
COVERED: dict[str, Callable[[Case], bool]] = {
    "key heads shared by ranks": lambda case: case.shape["num_key_value_heads"] < case.tensor,
    "as many key heads as heads": lambda case: case.shape["num_key_value_heads"] == case.shape["num_attention_heads"],
    "a padded vocabulary": lambda case: case.shape["vocab_size"] % case.tensor > 0,
    "an explicit head size": lambda case: "head_dim" in case.shape,
    "a tied head": lambda case: case.shape["tie_word_embeddings"],
    "a biased attention": lambda case: case.shape.get("attention_bias", False),
    "a biased MLP": lambda case: case.shape.get("mlp_bias", False),
    "a source in float32": lambda case: case.stored == "float32",
    "a cast between 16 bits": lambda case: (case.stored, case.dtype) == ("bfloat16", "float16"),
}


@pytest.mark.parametrize("what", COVERED)
@pytest.mark.parametrize("cases", [PLAIN, FP8], ids=["plain", "fp8"])
def test_cases_cover_each_feature(what: str, cases: list[Case]) -> None:
    assert any(map(COVERED[what], cases))


class TestWhatBothExport:
    @pytest.mark.parametrize("case", CASES, ids=str)
    def test_tensors_are_bit_identical(self, case: Case, exports: Callable[[Case], Exports]) -> None:
        assert_same_tensors(exports(case).ours.ranks, exports(case).theirs.ranks)

    @pytest.mark.parametrize("case", CASES, ids=str)
    def test_config_differs_only_in_listed_keys(self, case: Case, exports: Callable[[Case], Exports]) -> None:
        known = {key: quirk.kind for key, quirk in QUIRKS.items()}
        assert differences(exports(case)).items() <= known.items()

    @pytest.mark.parametrize("case", PLAIN, ids=str)
    def test_extra_config_keys_agree_with_modelopts_tensors(
        self, case: Case, exports: Callable[[Case], Exports]
    ) -> None:
        ours, names = exports(case).ours.config, exports(case).theirs.ranks[0].keys()
        layer = "transformer.layers.0"
        assert ours["attn_bias"] == (f"{layer}.attention.qkv.bias" in names)
        assert ours["mlp_bias"] == (f"{layer}.mlp.fc.bias" in names)
        assert ours["qk_layernorm"] == (f"{layer}.attention.q_layernorm.weight" in names)
        assert ours["tie_word_embeddings"] == case.shape["tie_word_embeddings"]
        model_type = case.architecture.removesuffix("ForCausalLM").lower()
        assert ours.get("qwen_type", model_type) == model_type
        assert ours.get("inter_layernorms", False) == (f"{layer}.pre_feedforward_layernorm.weight" in names)
        assert ("qwen_type" in ours) == ("Qwen" in case.architecture)

    @pytest.mark.parametrize("architecture", [name for name in DENSE if name in DIVIDED])
    def test_tensors_match_with_quantized_head_and_unquantized_layer(
        self, architecture: str, exports: Callable[[Case], Exports]
    ) -> None:
        case = random_case(architecture, 2, 1, weights="fp8", exclude=("transformer.layers.0.*",))
        both = exports(shaped(case, tie_word_embeddings=False, num_hidden_layers=2))
        assert both.theirs.ranks[0]["lm_head.weight"].dtype == torch.float8_e4m3fn
        assert both.theirs.ranks[0]["transformer.layers.0.attention.qkv.weight"].dtype != torch.float8_e4m3fn
        assert_same_tensors(both.ours.ranks, both.theirs.ranks)

    @pytest.mark.parametrize("weights", ["fp8", "fp8_rowwise"])
    def test_tensors_match_for_zero_weights(self, weights: str, tmp_path: Path) -> None:
        case = shaped(random_case("MistralForCausalLM", 1, 1, weights=weights), num_hidden_layers=3)
        model = make_model(case)
        for path in ("0.self_attn.k_proj", "1.mlp.up_proj", "2.mlp.down_proj"):
            torch.nn.init.zeros_(model.get_parameter(f"model.layers.{path}.weight"))
        torch.nn.init.zeros_(model.model.layers[2].self_attn.q_proj.weight[3])
        both = export_both(case, model, tmp_path)
        assert not both.theirs.ranks[0]["transformer.layers.2.mlp.proj.weight"].view(torch.uint8).any()
        assert_same_tensors(both.ours.ranks, both.theirs.ranks)

    def test_tensors_match_for_kv_cache_values_above_448(self, tmp_path: Path) -> None:
        case = random_case("LlamaForCausalLM", 1, 1, weights="fp8", kv_cache="fp8")
        case = replace(case, stored="bfloat16", dtype="bfloat16")
        model = make_model(case)
        with torch.no_grad():
            model.model.layers[0].self_attn.v_proj.weight.mul_(1000)
        both = export_both(case, model, tmp_path)
        scales = {
            kind: both.ours.ranks[0][f"transformer.layers.0.attention.{kind}_cache_scaling_factor"]
            for kind in ("k", "v", "kv")
        }
        assert scales["k"] == 1.0 < scales["v"] == scales["kv"]
        assert_same_tensors(both.ours.ranks, both.theirs.ranks)

    @pytest.mark.parametrize(
        "rope",
        [
            {"rope_type": "default", "rope_theta": 5e5},
            {"rope_type": "linear", "rope_theta": 1e4, "factor": 2.0},
            {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0},
            LLAMA3_ROPE,
        ],
        ids=lambda rope: rope["rope_type"],
    )
    def test_rotary_config_matches_with_transformers_4_attributes(self, rope: dict[str, Any], tmp_path: Path) -> None:
        case = shaped(random_case("LlamaForCausalLM", 1, 1), rope_parameters=rope, max_position_embeddings=256)
        model = make_model(case)
        scaling = {key: value for key, value in rope.items() if key != "rope_theta"}
        model.config.__dict__ |= {"rope_theta": rope["rope_theta"], "rope_scaling": None}
        if rope["rope_type"] != "default":
            model.config.__dict__["rope_scaling"] = scaling
        both = export_both(case, model, tmp_path)
        assert both.ours.config["rotary_base"] == both.theirs.config["rotary_base"] == rope["rope_theta"]
        theirs = both.theirs.config.get("rotary_scaling")
        # also under "type", for older versions of TensorRT-LLM
        assert both.ours.config["rotary_scaling"] == (theirs and theirs | {"type": rope["rope_type"]})


# Entries of the table that ModelOpt rejects: a model, and the error.
REFUSED = {
    "uneven pipeline": (shaped(random_case("LlamaForCausalLM", 2, 3), num_hidden_layers=5), AssertionError),
    "shared key heads by rows": (
        shaped(
            random_case("Qwen2ForCausalLM", 4, 1, weights="fp8_rowwise"), num_key_value_heads=2, num_attention_heads=8
        ),
        NotImplementedError,
    ),
    "experts by rows": (random_case("MixtralForCausalLM", 1, 1, weights="fp8_rowwise"), ValueError),
}


class TestTheTable:
    @pytest.mark.parametrize("key", [key for key, quirk in QUIRKS.items() if quirk.kind in (THEIRS, OURS, DIFFERS)])
    def test_listed_difference_still_occurs(self, key: str, exports: Callable[[Case], Exports]) -> None:
        assert any(differences(exports(case)).get(key) == QUIRKS[key].kind for case in reversed(CASES))

    def test_modelopt_still_pads_experts(self, exports: Callable[[Case], Exports]) -> None:
        hidden = 64
        case = shaped(random_case("MixtralForCausalLM", 4, 1), num_local_experts=3, hidden_size=hidden, head_dim=8)
        both = exports(case)
        padded = "transformer.layers.0.mlp.proj.weight"
        for ours, theirs in zip(both.ours.ranks, both.theirs.ranks, strict=True):
            assert theirs[padded].shape[1] == ours[padded].shape[1] + 1 == hidden + 1
            assert not theirs[padded][:, hidden:].any()
            theirs |= {name: theirs[name][:, :hidden] for name in theirs if name.endswith("mlp.proj.weight")}
        assert_same_tensors(both.ours.ranks, both.theirs.ranks)

    @pytest.mark.parametrize("quirk", REFUSED)
    def test_modelopt_still_rejects_listed_cases(self, quirk: str, exports: Callable[[Case], Exports]) -> None:
        case, error = REFUSED[quirk]
        with pytest.raises(error):
            exports(case)

    def test_modelopt_still_rejects_stacked_experts(self, tmp_path: Path) -> None:
        case = random_case("MixtralForCausalLM", 1, 1)
        with pytest.raises(TypeError, match="'MixtralExperts' has no len"):
            export(make_model(case, stacked_experts=True), case, tmp_path)

    @pytest.mark.parametrize("architecture", ["Gemma2ForCausalLM", "Gemma3ForCausalLM", "Phi3ForCausalLM"])
    def test_modelopt_still_cannot_export_gemma_and_phi_without_tensorrt_llm(
        self, architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(modelopt, "needs_tensorrt_llm", lambda case: False)
        case = random_case(architecture, 1, 1)
        with pytest.raises(NotImplementedError, match="Cannot export tensorrt_llm checkpoint"):
            export(make_model(case), case, tmp_path)

    @pytest.mark.parametrize("architecture", ["Gemma2ForCausalLM", "Gemma3ForCausalLM"])
    def test_modelopt_still_omits_the_tied_gemma_head(
        self, architecture: str, exports: Callable[[Case], Exports]
    ) -> None:
        both = exports(shaped(random_case(architecture, 2, 1), tie_word_embeddings=True))
        for ours, theirs in zip(both.ours.ranks, both.theirs.ranks, strict=True):
            assert torch.equal(ours["lm_head.weight"], theirs["transformer.vocab_embedding.weight"])
            theirs["lm_head.weight"] = ours["lm_head.weight"]
        assert_same_tensors(both.ours.ranks, both.theirs.ranks)

    @pytest.mark.parametrize("weights", ["none", "fp8_rowwise"])
    def test_modelopt_still_splits_both_phi_branches_as_one(
        self, weights: str, exports: Callable[[Case], Exports]
    ) -> None:
        """ModelOpt's first rank gets only the linear branch; trtspec puts half of both branches on every rank."""
        case = shaped(random_case("Phi3ForCausalLM", 2, 1, weights=weights), num_key_value_heads=2)
        case = shaped(case, num_attention_heads=4, head_dim=8, hidden_size=32)
        both, (whole,) = exports(case), exports(replace(case, tensor=1)).theirs.ranks
        expected = divided(whole, 4, 2, case.shape["num_hidden_layers"], 2, 1, branches=2)
        assert_same_tensors(both.ours.ranks, expected)
        for ours, theirs in zip(both.ours.ranks, both.theirs.ranks, strict=True):
            others = {name for name in ours if not torch.equal(bits(ours[name]), bits(theirs[name]))}
            assert others
            assert all(".mlp.fc." in name for name in others)

    def test_every_listed_rejection_has_a_test(self) -> None:
        proved = {*REFUSED, "stacked experts", "config.json of Gemma and Phi"}
        assert proved == {name for name, quirk in QUIRKS.items() if quirk.kind == REFUSES}

    @pytest.mark.parametrize("quirk", ["uneven pipeline", "shared key heads by rows"])
    def test_divisions_that_modelopt_rejects_match_torch(
        self, quirk: str, exports: Callable[[Case], Exports], tmp_path: Path
    ) -> None:
        case, _ = REFUSED[quirk]
        (whole,) = exports(replace(case, tensor=1, pipeline=1)).theirs.ranks
        ours = load(convert_case(case, save_source(make_model(case), tmp_path / "source"), tmp_path / "ours"))
        names = ("num_attention_heads", "num_key_value_heads", "num_hidden_layers")
        expected = divided(whole, *(case.shape[name] for name in names), case.tensor, case.pipeline)
        assert_same_tensors(ours.ranks, expected)
