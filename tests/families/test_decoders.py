# SPDX-License-Identifier: Apache-2.0
"""Where the other families differ from Llama: each tensor of a converted checkpoint, and what its config says."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.tiny import convert, make_model
from trtspec.checkpoint.trtllm import load_checkpoint

Tensors = dict[str, Tensor]


def converted(root: Path, family: str, **shape: Any) -> tuple[Tensors, Tensors, dict[str, Any]]:
    """Return the source's tensors, the converted ones and the converted config."""
    source = make_model(root / "hf", family, num_hidden_layers=1, **shape)
    out = convert(source, root / "c")
    config = json.loads((out / "config.json").read_text())
    return load_file(source / "model.safetensors"), load_file(out / "rank0.safetensors"), config


def layer_of(theirs: Tensors) -> Tensors:
    """Return what every family's layer has: norms and attention without biases."""
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


def test_mistral_is_llama_with_a_window(tmp_path: Path) -> None:
    theirs, ours, config = converted(tmp_path, "mistral", sliding_window=32)
    assert_equal(ours, layer_of(theirs) | dense_mlp(theirs))
    assert (config["architecture"], config["sliding_window"]) == ("MistralForCausalLM", 32)
    assert load_checkpoint(tmp_path / "c").config.exact_positions == 32


def test_mixtral_stacks_its_experts(tmp_path: Path) -> None:
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


def test_qwen3_norms_queries_and_keys(tmp_path: Path) -> None:
    theirs, ours, config = converted(tmp_path, "qwen3", head_dim=16)
    norms = {
        f"transformer.layers.0.attention.{n}_layernorm.weight": theirs[f"model.layers.0.self_attn.{n}_norm.weight"]
        for n in "qk"
    }
    assert_equal(ours, layer_of(theirs) | dense_mlp(theirs) | norms)
    assert (config["qwen_type"], config["qk_layernorm"], config["head_size"]) == ("qwen3", True, 16)
