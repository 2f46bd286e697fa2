# SPDX-License-Identifier: Apache-2.0
"""The differences of the other families from Llama: each tensor of a converted checkpoint, and its config."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests._support.tiny import convert, make_model
from tests.families.sources import edit, rewrite
from trtspec.checkpoints.model_config import RopeScaling
from trtspec.checkpoints.source import load_source
from trtspec.checkpoints.trtllm import load_checkpoint
from trtspec.families.phi3 import FAMILY as PHI3

Tensors = dict[str, Tensor]


def converted(root: Path, family: str, **shape: Any) -> tuple[Tensors, Tensors, dict[str, Any]]:
    """Return the source's tensors, the converted ones and the converted config."""
    source = make_model(root / "hf", family, num_hidden_layers=1, **shape)
    out = convert(source, root / "c")
    config = json.loads((out / "config.json").read_text())
    return load_file(source / "model.safetensors"), load_file(out / "rank0.safetensors"), config


def layer_of(theirs: Tensors) -> Tensors:
    """Return the layer tensors common to all families: norms and attention without biases."""
    there, here = "model.layers.0", "transformer.layers.0"
    return {
        "transformer.vocab_embedding.weight": theirs["model.embed_tokens.weight"],
        "transformer.ln_f.weight": theirs["model.norm.weight"],
        "lm_head.weight": theirs["lm_head.weight"],
        f"{here}.input_layernorm.weight": theirs[f"{there}.input_layernorm.weight"],
        f"{here}.post_layernorm.weight": theirs[f"{there}.post_attention_layernorm.weight"],
        f"{here}.attention.qkv.weight": torch.cat([theirs[f"{there}.self_attn.{n}_proj.weight"] for n in "qkv"]),
        f"{here}.attention.dense.weight": theirs[f"{there}.self_attn.o_proj.weight"],
    }


def dense_mlp(theirs: Tensors) -> Tensors:
    pairs = (("fc", "gate"), ("gate", "up"), ("proj", "down"))
    return {
        f"transformer.layers.0.mlp.{here}.weight": theirs[f"model.layers.0.mlp.{there}_proj.weight"]
        for here, there in pairs
    }


def assert_equal(ours: Tensors, expected: Tensors) -> None:
    assert ours.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(ours[name], tensor), name


def inner_norms(theirs: Tensors) -> Tensors:
    """Return the two additional norms of Gemma's layers."""
    return {
        f"transformer.layers.0.{name}_feedforward_layernorm.weight": theirs[
            f"model.layers.0.{name}_feedforward_layernorm.weight"
        ]
        for name in ("pre", "post")
    }


def plus_one(expected: Tensors) -> Tensors:
    """Return the tensors with 1 added, in float32, to the weights of norms."""
    return {
        name: (tensor.float() + 1).to(tensor.dtype) if tensor.dim() == 1 else tensor
        for name, tensor in expected.items()
    }


def test_gemma2_norm_weights_are_increased_by_one(tmp_path: Path) -> None:
    theirs, ours, config = converted(tmp_path, "gemma2")
    assert_equal(ours, plus_one(layer_of(theirs) | dense_mlp(theirs) | inner_norms(theirs)))
    facts = ("query_pre_attn_scalar", "attn_logit_softcapping", "final_logit_softcapping", "hidden_act")
    assert [config[fact] for fact in facts] == [12.0, 50.0, 30.0, "gelu"]
    assert (config["inter_layernorms"], config["emb_scale_by_sqrt_dim"], config["sliding_window"]) == (True, True, 32)


def test_norm_weights_increased_by_one_are_rounded_once(tmp_path: Path) -> None:
    source = make_model(tmp_path / "hf", "gemma2")
    name = "model.norm.weight"
    weight = torch.linspace(-0.3, 0.3, 32).bfloat16()
    rewrite(source, lambda tensors: tensors.update({name: weight}))
    ours = load_file(convert(source, tmp_path / "c", "float16") / "rank0.safetensors")["transformer.ln_f.weight"]
    assert torch.equal(ours, (weight.float() + 1).half())
    assert not torch.equal(ours, (weight + 1).half())


def test_gemma3_has_query_and_key_norms(tmp_path: Path) -> None:
    theirs, ours, config = converted(tmp_path, "gemma3")
    norms = {
        f"transformer.layers.0.attention.{n}_layernorm.weight": theirs[f"model.layers.0.self_attn.{n}_norm.weight"]
        for n in "qk"
    }
    assert_equal(ours, plus_one(layer_of(theirs) | dense_mlp(theirs) | inner_norms(theirs) | norms))
    assert (config["rotary_base"], config["rope_local_base_freq"]) == (1e6, 1e4)
    assert "attn_logit_softcapping" not in config


@pytest.mark.slow
@pytest.mark.parametrize("layers", [5, 6, 13])
def test_gemma3_config_of_older_transformers_equals_the_new_one(layers: int, tmp_path: Path) -> None:
    """Rotary positions and layers have separate keys, as in the published configs."""
    root = make_model(tmp_path / "hf", "gemma3", num_hidden_layers=layers)
    new = load_checkpoint(convert(root, tmp_path / "new")).config
    keys = {"rope_theta": 1e6, "rope_local_base_freq": 1e4, "sliding_window_pattern": 6}
    edit(root, rope_parameters=None, layer_types=None, **keys)
    assert load_checkpoint(convert(root, tmp_path / "old")).config == new
    assert new.full_layers == tuple(range(5, layers, 6))
    edit(root, rope_scaling={"rope_type": "linear", "factor": 8.0})
    scaled = load_checkpoint(convert(root, tmp_path / "scaled")).config
    assert scaled == replace(new, rope_scaling=RopeScaling("linear", 8.0))


def test_granite_multipliers_have_the_names_and_meaning_of_tensorrt_llm(tmp_path: Path) -> None:
    """Its attention multiplier is relative to the usual scale (tensorrt_llm/models/llama/config.py)."""
    theirs, ours, config = converted(tmp_path, "granite")
    assert_equal(ours, layer_of(theirs) | dense_mlp(theirs))
    names = ("embedding_multiplier", "residual_multiplier", "output_multiplier_scale", "attention_multiplier")
    assert [config[name] for name in names] == [12.0, 0.22, 1 / 8, 0.25 * math.sqrt(8)]
    assert config["architecture"] == "GraniteForCausalLM"


def test_olmo2_norms_outputs_and_all_heads(tmp_path: Path) -> None:
    theirs, ours, config = converted(tmp_path, "olmo2")
    there, here = "model.layers.0", "transformer.layers.0"
    norms = {
        f"{here}.post_layernorm.weight": theirs[f"{there}.post_attention_layernorm.weight"],
        f"{here}.post_feedforward_layernorm.weight": theirs[f"{there}.post_feedforward_layernorm.weight"],
        **{f"{here}.attention.{n}_layernorm.weight": theirs[f"{there}.self_attn.{n}_norm.weight"] for n in "qk"},
    }
    input_norm = f"{here}.input_layernorm.weight"
    common = layer_of(theirs | {f"{there}.input_layernorm.weight": torch.empty(0)})
    assert_equal(ours, {name: rows for name, rows in common.items() if name != input_norm} | dense_mlp(theirs) | norms)
    assert [ours[f"{here}.attention.{n}_layernorm.weight"].shape for n in "qk"] == [(32,), (16,)]
    assert (config["input_layernorms"], config["qk_layernorm_over_heads"]) == (False, True)


def test_phi3_fused_projections_are_split_by_rows(tmp_path: Path) -> None:
    theirs, ours, config = converted(tmp_path, "phi3")
    own = "model.layers.0"
    gate, up = theirs[f"{own}.mlp.gate_up_proj.weight"].chunk(2)
    q, k, v = theirs[f"{own}.self_attn.qkv_proj.weight"].split([32, 16, 16])
    apart = {f"{own}.self_attn.{n}_proj.weight": rows for n, rows in (("q", q), ("k", k), ("v", v))}
    mlp = {
        "transformer.layers.0.mlp.fc.weight": torch.cat([up, gate]),
        "transformer.layers.0.mlp.proj.weight": theirs[f"{own}.mlp.down_proj.weight"],
    }
    assert_equal(ours, layer_of(theirs | apart) | mlp)
    assert (config["architecture"], config["hidden_act"], config["rotary_pct"]) == ("Phi3ForCausalLM", "swiglu", 1.0)


def test_phi3_rules_use_every_stored_row_once(tmp_path: Path) -> None:
    source = load_source(make_model(tmp_path / "hf", "phi3"))
    rules = PHI3.rules(PHI3.read(source.reader, "auto"))
    taken: dict[str, list[int]] = {}
    for part in (part for rule in rules for part in rule.sources):
        taken.setdefault(part.name, []).extend(range(part.first_row, part.first_row + part.shape[0]))
    assert {name: sorted(rows) for name, rows in taken.items()} == {
        name: list(range(tensor.shape[0])) for name, tensor in source.tensors.items()
    }


@pytest.mark.parametrize("kind", ["longrope", "su", "yarn"])
def test_phi3_rope_scaling_is_converted_to_longrope(kind: str, tmp_path: Path) -> None:
    root = make_model(tmp_path / "hf", "phi3")
    rope = {"type": kind, "short_factor": [1.0, 1.1, 1.3, 1.7], "long_factor": [1.0, 2.0, 3.0, 5.0]}
    edit(root, rope_parameters=None, rope_theta=1e4, rope_scaling=rope, original_max_position_embeddings=64)
    out = convert(root, tmp_path / "c")
    config = json.loads((out / "config.json").read_text())
    assert (config["position_embedding_type"], config["original_max_position_embeddings"]) == ("long_rope", 64)
    factors = (config["longrope_scaling_short_factors"], config["longrope_scaling_long_factors"])
    assert factors == (rope["short_factor"], rope["long_factor"])
    assert config["rotary_scaling"] is None
    read = load_checkpoint(out).config.rope_scaling
    assert read is not None
    assert read.attention_factor == (1 + math.log(256 / 64) / math.log(64)) ** 0.5


def test_mistral_is_llama_with_a_sliding_window(tmp_path: Path) -> None:
    theirs, ours, config = converted(tmp_path, "mistral", sliding_window=32)
    assert_equal(ours, layer_of(theirs) | dense_mlp(theirs))
    assert (config["architecture"], config["sliding_window"]) == ("MistralForCausalLM", 32)
    assert load_checkpoint(tmp_path / "c").config.exact_positions == 32


def test_mixtral_experts_are_stacked(tmp_path: Path) -> None:
    """The linear branch is above the activated one, and the router is float32."""
    theirs, ours, config = converted(tmp_path, "mixtral", num_local_experts=3)
    moe, mlp = "model.layers.0.block_sparse_moe", "transformer.layers.0.mlp"
    experts = [[theirs[f"{moe}.experts.{e}.w{n}.weight"] for n in (1, 2, 3)] for e in range(3)]
    expected = {
        f"{mlp}.router.weight": theirs[f"{moe}.gate.weight"].float(),
        f"{mlp}.fc.weight": torch.stack([torch.cat([w3, w1]) for w1, _, w3 in experts]),
        f"{mlp}.proj.weight": torch.stack([w2 for _, w2, _ in experts]),
    }
    assert_equal(ours, layer_of(theirs) | expected)
    assert config["moe"] == {"num_experts": 3, "top_k": 2, "normalization_mode": 1}
    assert (config["hidden_act"], config["mapping"]["moe_tp_size"], config["mapping"]["moe_ep_size"]) == (
        "swiglu",
        1,
        1,
    )


def test_qwen2_has_biases_on_queries_keys_and_values(tmp_path: Path) -> None:
    theirs, ours, config = converted(tmp_path, "qwen2")
    bias = torch.cat([theirs[f"model.layers.0.self_attn.{n}_proj.bias"] for n in "qkv"])
    assert_equal(ours, layer_of(theirs) | dense_mlp(theirs) | {"transformer.layers.0.attention.qkv.bias": bias})
    assert (config["qwen_type"], config["attn_bias"], "sliding_window" in config) == ("qwen2", True, False)
    read = load_checkpoint(tmp_path / "c").config
    assert (read.attn_bias, read.dense_bias) == (True, False)


def test_qwen3_has_query_and_key_norms(tmp_path: Path) -> None:
    theirs, ours, config = converted(tmp_path, "qwen3", head_dim=16)
    norms = {
        f"transformer.layers.0.attention.{n}_layernorm.weight": theirs[f"model.layers.0.self_attn.{n}_norm.weight"]
        for n in "qk"
    }
    assert_equal(ours, layer_of(theirs) | dense_mlp(theirs) | norms)
    assert (config["qwen_type"], config["qk_layernorm"], config["head_size"]) == ("qwen3", True, 16)
