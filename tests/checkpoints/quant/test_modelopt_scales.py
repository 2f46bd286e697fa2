# SPDX-License-Identifier: Apache-2.0
"""Calibration gives the same scales as ModelOpt's for the same texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests._support.tiny import PAIR_VOCAB, convert, make_model, make_tokenizer
from trtspec.backends.common.convert import calibrate_checkpoint
from trtspec.checkpoints.quant_scheme import Scheme
from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.engine.prompts.prompt import Prompt

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("one_thread")]

TEXTS = ("the rest is in here", "naïve 北京", "{" * 50, "where the north wind is, there is rain " * 4)
PROMPTS = [Prompt(text, str(number), "") for number, text in enumerate(TEXTS)]
MAX_LEN = 120
TOLERANCE = 1e-6
DECODERS = {"llama": "llama", "mistral": "llama", "qwen2": "qwen", "qwen3": "qwen"}
SCALES = ("activation_scaling_factor", "cache_scaling_factor")


def make_source(root: Path, family: str, dtype: str, kv_factor: float = 1.0) -> Path:
    """Save a random model, with the key and value projections multiplied by `kv_factor`, and a tokenizer."""
    file = make_model(root, family, dtype=dtype, vocab_size=PAIR_VOCAB) / "model.safetensors"
    tensors = load_file(file)
    for name, tensor in tensors.items():
        if "k_proj" in name or "v_proj" in name:
            tensor.mul_(kv_factor)
    save_file(tensors, file, metadata={"format": "pt"})
    return make_tokenizer(root)


def quantized(source: Path) -> Any:
    """Return transformers' model of `source`, quantized by ModelOpt to FP8 with an FP8 KV cache."""
    import modelopt.torch.quantization as mtq
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(source, dtype="auto", experts_implementation="eager").eval()
    tokenizer = Tokenizer(source)
    texts = [torch.tensor([tokenizer.encode(prompt.text)[:MAX_LEN]]) for prompt in PROMPTS]
    config = mtq.utils.update_quant_cfg_with_kv_cache_quant(mtq.FP8_DEFAULT_CFG, mtq.FP8_KV_CFG["quant_cfg"])
    return mtq.quantize(model, config, lambda model: [model(text) for text in texts])


# values beyond 448 give a cache a scale other than 1
@pytest.mark.parametrize("kv_factor", [1.0, 256.0])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize("family", DECODERS)
def test_calibrated_scales_match_modelopts_export(family: str, dtype: str, kv_factor: float, tmp_path: Path) -> None:
    from modelopt.torch.export import export_tensorrt_llm_checkpoint

    source = make_source(tmp_path / "source", family, dtype, kv_factor)
    model = quantized(source)
    with torch.inference_mode():
        export_tensorrt_llm_checkpoint(
            model, DECODERS[family], model.dtype, tmp_path / "theirs", inference_tensor_parallel=1
        )
    measured = calibrate_checkpoint(source, PROMPTS, MAX_LEN)
    ours = convert(source, tmp_path / "ours", "bfloat16", scheme=Scheme("fp8", "fp8"), activations=measured)
    found, expected = (
        {name: scale.item() for name, scale in load_file(root / "rank0.safetensors").items() if name.endswith(SCALES)}
        for root in (ours, tmp_path / "theirs")
    )
    assert len(expected) == 2 * (5 + 3)
    assert found == pytest.approx(expected, rel=TOLERANCE, abs=0.0)
    largest = max(value for name, value in expected.items() if "cache" in name)
    assert (largest > 1.0) == (kv_factor > 1.0)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_expert_activations_match_modelopt(dtype: str, tmp_path: Path) -> None:
    """The exporter cannot write the stacked experts of transformers 5, but their quantizers work."""
    source = make_source(tmp_path, "mixtral", dtype)
    measured = calibrate_checkpoint(source, PROMPTS, MAX_LEN)
    modules = dict(quantized(source).named_modules())
    for layer in range(2):
        ours, theirs = f"transformer.layers.{layer}", f"model.layers.{layer}"
        found = {
            f"{theirs}.self_attn.q_proj.input_quantizer": measured.inputs[f"{ours}.attention.qkv"],
            f"{theirs}.self_attn.o_proj.input_quantizer": measured.inputs[f"{ours}.attention.dense"],
            f"{theirs}.self_attn.k_bmm_quantizer": measured.keys[f"{ours}.attention"],
            f"{theirs}.self_attn.v_bmm_quantizer": measured.values[f"{ours}.attention"],
            f"{theirs}.mlp.experts.gate_up_proj_input_quantizer": measured.inputs[f"{ours}.mlp.fc"],
            f"{theirs}.mlp.experts.down_proj_input_quantizer": measured.inputs[f"{ours}.mlp.proj"],
        }
        assert found == pytest.approx({name: modules[name].amax.item() for name in found}, rel=TOLERANCE, abs=0.0)
