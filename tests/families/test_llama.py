# SPDX-License-Identifier: Apache-2.0
"""Converted Llama checkpoints, tensor by tensor, and all inconsistencies of a source."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tests._support.tiny import LLAMA3_ROPE, convert, make_llama
from tests.families.sources import edit, refused, rewrite
from trtspec.checkpoints.trtllm import load_checkpoint
from trtspec.core.errors import CheckpointError


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_llama(tmp_path / "hf", attention_bias=True, mlp_bias=True)


def test_converted_tensors_have_the_names_of_tensorrt_llm(source: Path, tmp_path: Path) -> None:
    theirs, ours = (
        load_file(source / "model.safetensors"),
        load_file(convert(source, tmp_path / "c") / "rank0.safetensors"),
    )
    expected = {
        "transformer.vocab_embedding.weight": theirs["model.embed_tokens.weight"],
        "transformer.ln_f.weight": theirs["model.norm.weight"],
        "lm_head.weight": theirs["lm_head.weight"],
    }
    for layer in range(2):
        there, here = f"model.layers.{layer}", f"transformer.layers.{layer}"
        expected[f"{here}.input_layernorm.weight"] = theirs[f"{there}.input_layernorm.weight"]
        expected[f"{here}.post_layernorm.weight"] = theirs[f"{there}.post_attention_layernorm.weight"]
        for kind in ("weight", "bias"):
            qkv = [theirs[f"{there}.self_attn.{name}_proj.{kind}"] for name in "qkv"]
            expected[f"{here}.attention.qkv.{kind}"] = torch.cat(qkv)
            expected[f"{here}.attention.dense.{kind}"] = theirs[f"{there}.self_attn.o_proj.{kind}"]
            # fc is the branch that goes through the activation
            for name, origin in (("fc", "gate"), ("gate", "up"), ("proj", "down")):
                expected[f"{here}.mlp.{name}.{kind}"] = theirs[f"{there}.mlp.{origin}_proj.{kind}"]
    assert ours.keys() == expected.keys()
    for name, tensor in expected.items():
        assert torch.equal(ours[name], tensor), name


def test_converted_config_has_the_fields_of_tensorrt_llm(tmp_path: Path) -> None:
    source = make_llama(tmp_path / "hf", rope_parameters=LLAMA3_ROPE, tie_word_embeddings=True)
    written = json.loads((convert(source, tmp_path / "c") / "config.json").read_text())
    assert written == {
        "producer": {"name": "trtspec"},
        "architecture": "LlamaForCausalLM", "dtype": "bfloat16", "logits_dtype": "float32",
        "vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_size": 8, "intermediate_size": 48, "hidden_act": "silu",
        "norm_epsilon": 1e-6, "max_position_embeddings": 256, "position_embedding_type": "rope_gpt_neox",
        "rotary_base": 5e5,
        "rotary_scaling": {
            "rope_type": "llama3", "type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
        "attn_bias": False, "mlp_bias": False, "qk_layernorm": False, "tie_word_embeddings": True,
        "use_parallel_embedding": True, "embedding_sharding_dim": 0,
        "mapping": {"world_size": 1, "gpus_per_node": 8, "tp_size": 1, "pp_size": 1, "cp_size": 1},
        "quantization": {"quant_algo": None, "kv_cache_quant_algo": None},
    }  # fmt: skip


@pytest.mark.parametrize(
    "shape", [{}, {"tie_word_embeddings": True}, {"attention_bias": True}, {"rope_parameters": LLAMA3_ROPE}]
)
def test_converted_checkpoint_is_read_back(shape: dict[str, Any], tmp_path: Path) -> None:
    checkpoint = load_checkpoint(convert(make_llama(tmp_path / "hf", **shape), tmp_path / "c"))
    tied = "tie_word_embeddings" in shape
    # a tied head is stored as a copy, which is not a separate parameter
    weights = [tensor for tensor in checkpoint.tensors if not (tied and tensor.name == "lm_head.weight")]
    assert checkpoint.config.num_parameters == sum(tensor.nbytes // 2 for tensor in weights)
    assert checkpoint.config.tied_embeddings == tied


def test_rope_keys_of_older_transformers_are_read(tmp_path: Path) -> None:
    source = make_llama(tmp_path / "hf", rope_parameters=LLAMA3_ROPE)
    new = load_checkpoint(convert(source, tmp_path / "new")).config
    edit(
        source,
        rope_parameters=None,
        rope_theta=5e5,
        rope_scaling={k: v for k, v in LLAMA3_ROPE.items() if k != "rope_theta"},
    )
    assert load_checkpoint(convert(source, tmp_path / "old")).config == new


@pytest.mark.parametrize(
    ("stored", "wanted"), [("float32", "float16"), ("float32", "bfloat16"), ("bfloat16", "float16")]
)
def test_weights_are_cast_to_the_requested_dtype(stored: str, wanted: str, tmp_path: Path) -> None:
    source = make_llama(tmp_path / "hf", dtype=stored)
    ours = load_file(convert(source, tmp_path / "c", wanted) / "rank0.safetensors")
    theirs = load_file(source / "model.safetensors")
    assert torch.equal(ours["lm_head.weight"], theirs["lm_head.weight"].to(getattr(torch, wanted)))


def test_value_too_large_for_fp16_is_an_error(tmp_path: Path) -> None:
    source = make_llama(tmp_path / "hf")
    rewrite(source, lambda tensors: tensors["model.norm.weight"].fill_(70000.0))
    with pytest.raises(CheckpointError, match=r"model\.norm\.weight: 32 values are too large for F16 in model\."):
        convert(source, tmp_path / "c", "float16")


CONFIGS = {
    "no architecture": ({"architectures": None}, "architectures is null, expected a list with one name"),
    "unknown": ({"architectures": ["LlamaForCasualLM"]}, "architecture 'LlamaForCasualLM' is not supported; "),
    "near miss": ({"architectures": ["LlamaForCasualLM"]}, "architecture 'LlamaForCasualLM' is not supported"),
    "two": ({"architectures": ["A", "B"]}, 'architectures is ["A", "B"], expected a list with one name'),
    "no size": ({"hidden_size": None}, "config.json lacks hidden_size, so the defaults of transformers' class were"),
    "text": ({"hidden_size": "32"}, "config.json: hidden_size is '32', expected int"),
    "negative": ({"vocab_size": -4}, "config.json: vocab_size is -4, expected a positive number"),
    "groups": ({"num_key_value_heads": 3}, "num_attention_heads 4 is not a multiple of num_key_value_heads 3"),
    "act": ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported; supported: silu"),
    "rope": ({"rope_parameters": {"rope_type": "magic"}}, "rope type 'magic' is not supported"),
    "shape": ({"intermediate_size": 40}, "mlp.down_proj.weight: [32, 48] in model.safetensors, but [32, 40] "),
    "layers": ({"num_hidden_layers": 3}, "model.layers.2.input_layernorm.weight: missing"),
    "fewer layers": ({"num_hidden_layers": 1}, "model.layers.1.input_layernorm.weight: no rule uses it"),
    "dtype": ({"dtype": "float8_e4m3fn"}, "dtype 'float8_e4m3fn' is not supported"),
}  # fmt: skip


@pytest.mark.parametrize("case", CONFIGS.values(), ids=CONFIGS.keys())
def test_invalid_config_is_rejected(case: tuple[dict[str, Any], str], source: Path) -> None:
    values, message = case
    edit(source, **values)
    refused(source, message)


def test_extra_tensor_is_rejected_and_rotary_frequencies_are_skipped(source: Path) -> None:
    rewrite(source, lambda tensors: tensors.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(4)}))
    convert(source, source.parent / "c")
    rewrite(source, lambda tensors: tensors.update({"model.extra": torch.ones(4)}))
    refused(source, "1 tensor does not add up:\n  model.extra: no rule uses it")


def test_integer_weight_is_rejected(source: Path) -> None:
    rewrite(source, lambda tensors: tensors.update({"model.norm.weight": torch.ones(32, dtype=torch.int32)}))
    refused(source, "model.norm.weight: dtype I32 in model.safetensors; supported: BF16, F16, F32")
