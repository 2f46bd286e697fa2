# SPDX-License-Identifier: Apache-2.0
"""The forward pass of every family against transformers' own model of the source, in many shapes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests._support.tiny import FAMILY_SHAPES, LLAMA3_ROPE, SHAPE, convert, make_model, reference_model
from trtspec.checkpoints.trtllm import load_checkpoint
from trtspec.engine.model import layers
from trtspec.engine.model.decoder import FINAL, Decoder

pytestmark = pytest.mark.integration

PACKS = isinstance(layers.make_matrix(torch.ones(layers.PACKED_FROM // 256, 256)), layers.PackedMatrix)

LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}
DYNAMIC_ROPE = {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 4.0}
YARN_ROPE = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 8.0, "original_max_position_embeddings": 64}
MANY_HEADS = {"num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 4}
ONE_KEY_HEAD = {"num_key_value_heads": 1}
TIED = {"tie_word_embeddings": True}
WIDE_HEADS = {"head_dim": 16}
BIASES = {"attention_bias": True}
LENGTH = 200  # beyond the original positions of LLAMA3_ROPE and YARN_ROPE, and beyond most windows
NO_CAPS = {"attn_logit_softcapping": None, "final_logit_softcapping": None}
FIRM_CAPS = {"attn_logit_softcapping": 2.0, "final_logit_softcapping": 1.5}
# one layer without a window, other than the last one
FEW_LAYERS = {
    "num_hidden_layers": 4,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention"],
}  # fmt: skip
TWO_ROPES = {
    "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
PART_OF_A_HEAD = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.75}
LONGROPE = {
    "rope_type": "longrope", "rope_theta": 1e4, "short_factor": [1.0, 1.1, 1.3, 1.7],
    "long_factor": [1.0, 2.0, 3.0, 5.0],
}  # fmt: skip
LONGROPE_OF_A_PART = PART_OF_A_HEAD | {
    "rope_type": "longrope", "short_factor": [1.0, 1.1, 1.3], "long_factor": [1.0, 2.0, 3.0], "factor": 4.0,
}  # fmt: skip
CASES: list[tuple[str, dict[str, Any]]] = [
    *((family, {}) for family in FAMILY_SHAPES),
    *((family, TIED | ONE_KEY_HEAD) for family in FAMILY_SHAPES),
    ("gemma2", TIED | ONE_KEY_HEAD | FIRM_CAPS | {"num_hidden_layers": 5}),
    ("gemma2", NO_CAPS | {"sliding_window": 300}),
    ("gemma2", BIASES | WIDE_HEADS),
    ("gemma3", {"num_hidden_layers": 7}),
    ("gemma3", TIED | FEW_LAYERS | {"rope_parameters": TWO_ROPES, "final_logit_softcapping": 3.0}),
    ("gemma3", ONE_KEY_HEAD | {"sliding_window": 1}),
    ("granite", BIASES | {"mlp_bias": True, "head_dim": 16}),
    ("granite", {"attention_multiplier": 1.0, "rope_parameters": YARN_ROPE}),
    ("llama", MANY_HEADS),
    ("llama", WIDE_HEADS | BIASES | {"mlp_bias": True}),
    ("llama", {"rope_parameters": LLAMA3_ROPE}),
    ("llama", {"rope_parameters": LINEAR_ROPE}),
    ("llama", {"rope_parameters": DYNAMIC_ROPE}),
    ("llama", {"rope_parameters": YARN_ROPE}),
    ("llama", {"num_hidden_layers": 5, "hidden_size": 40, "num_attention_heads": 5, "num_key_value_heads": 5}),
    ("mistral", WIDE_HEADS | ONE_KEY_HEAD),
    ("mistral", {"sliding_window": 200}),
    ("mistral", {"sliding_window": 30}),
    ("mixtral", {"num_experts_per_tok": 1}),
    ("mixtral", {"num_experts_per_tok": 2, "num_key_value_heads": 4}),
    ("mixtral", {"num_experts_per_tok": 4} | ONE_KEY_HEAD),
    ("mixtral", {"num_experts_per_tok": 3, "num_local_experts": 7} | TIED),
    ("olmo2", BIASES | {"num_hidden_layers": 5}),
    ("olmo2", MANY_HEADS | {"rope_parameters": LLAMA3_ROPE}),
    ("phi3", TIED | MANY_HEADS | {"sliding_window": 50}),
    ("phi3", ONE_KEY_HEAD | {"rope_parameters": PART_OF_A_HEAD}),
    ("phi3", {"rope_parameters": LONGROPE, "original_max_position_embeddings": LENGTH - 1}),
    ("phi3", {"rope_parameters": LONGROPE, "original_max_position_embeddings": LENGTH}),
    ("phi3", {"rope_parameters": LONGROPE_OF_A_PART, "original_max_position_embeddings": 64}),
    ("qwen2", {"use_sliding_window": True, "sliding_window": 40, "max_window_layers": 1}),
    ("qwen2", {"rope_parameters": YARN_ROPE} | MANY_HEADS),
    ("qwen3", WIDE_HEADS | TIED),
    ("qwen3", BIASES | ONE_KEY_HEAD),
    ("qwen3", {"rope_parameters": YARN_ROPE}),
]
NAMES = [" ".join([family, *(f"{key}={str(value)[:24]}" for key, value in shape.items())]) for family, shape in CASES]


def tokens_of(rows: int = 2, length: int = LENGTH) -> Tensor:
    return torch.from_numpy(np.random.default_rng(0).integers(0, SHAPE["vocab_size"], (rows, length)))


def logits_of(decoder: Decoder, tokens: Tensor, *widths: int) -> Tensor:
    """Return logits [rows, length, vocab] of tokens processed in chunks of these widths, which add up to the length."""
    rows, start, chunks = len(tokens), 0, []
    for width in widths:
        window = decoder.windows.chain([start] * rows, width)
        chunks.append(decoder.forward(tokens[:, start : start + width], window).view(rows, width, -1))
        start += width
    return torch.cat(chunks, 1)


def load(root: Path, dtype: torch.dtype = torch.float32) -> Decoder:
    return Decoder(load_checkpoint(root), 2, LENGTH, torch.device("cpu"), dtype)


@pytest.mark.parametrize(("family", "shape"), CASES, ids=NAMES)
@torch.inference_mode()
def test_logits_equal_transformers(family: str, shape: dict[str, Any], tmp_path: Path) -> None:
    """Prefill, verification and steps agree to a few float32 roundings; bfloat16 is as accurate as transformers."""
    source, tokens = make_model(tmp_path / "hf", family, **shape), tokens_of()
    converted = convert(source, tmp_path / "converted")
    expected = reference_model(source)(tokens).logits
    scale = expected.abs().max()
    ours = logits_of(load(converted), tokens, 120, 1, 6, 1, 72)
    assert (ours - expected).abs().max() < 1e-5 * scale
    # the median, because a token's logits differ completely if rounding changes the choice of experts
    coarse = (logits_of(load(converted, torch.bfloat16), tokens, LENGTH) - expected).abs().median()
    theirs = (reference_model(source, "bfloat16")(tokens).logits - expected).abs().median()
    assert 0 < coarse < 1.2 * theirs


@torch.inference_mode()
def test_float16_source_logits_equal_transformers(tmp_path: Path) -> None:
    source, tokens = make_model(tmp_path / "hf", "qwen2", dtype="float16"), tokens_of()
    expected = reference_model(source)(tokens).logits
    ours = logits_of(load(convert(source, tmp_path / "converted")), tokens, LENGTH)
    assert (ours - expected).abs().max() < 1e-5 * expected.abs().max()


@pytest.mark.skipif(not PACKS, reason="this machine has no oneDNN")
@pytest.mark.parametrize(("family", "takes"), [("llama", 10), ("gemma2", 10), ("qwen3", 10), ("mixtral", 9)])
@torch.inference_mode()
def test_padding_rows_do_not_change_any_bit(family: str, takes: int, tmp_path: Path, monkeypatch) -> None:
    """Except with experts, nine rows are padded to ten once instead of in each product."""
    monkeypatch.setattr(layers, "PACKED_FROM", 1)
    decoder, tokens = load(convert(make_model(tmp_path / "hf", family), tmp_path / "converted")), tokens_of(1)
    window, mlp, seen = decoder.windows.chain([0], 9), type(decoder.layers[0].mlp), set[int]()
    add_to = mlp.add_to

    def noted(self, residual, rows):
        seen.add(len(rows))
        return add_to(self, residual, rows)

    monkeypatch.setattr(mlp, "add_to", noted)
    filled = decoder.forward_with_features(tokens[:, :9], window, (0, 1, FINAL))
    monkeypatch.setattr(Decoder, "_padding", lambda self, count: 0)
    alone = decoder.forward_with_features(tokens[:, :9], window, (0, 1, FINAL))
    assert seen == {takes, 9}
    assert all(ours.shape[0] == 9 and torch.equal(ours, theirs) for ours, theirs in zip(filled, alone, strict=True))


@torch.inference_mode()
def test_rows_of_different_lengths_are_independent(tmp_path: Path) -> None:
    """Experts and head norms work per token, independent of the rest of the batch."""
    for family in ("mixtral", "qwen3"):
        decoder = load(convert(make_model(tmp_path / family, family), tmp_path / f"{family}-converted"))
        tokens = tokens_of()
        alone = logits_of(decoder, tokens[:1], 50, 3)[0, -1]
        decoder.forward(tokens[1:, :9], decoder.windows.chain([0], 9, first_row=1))
        together = decoder.forward(torch.stack([tokens[0, 50:53], tokens[1, 9:12]]), decoder.windows.chain([50, 9], 3))
        torch.testing.assert_close(together[2], alone, rtol=1e-5, atol=1e-5)
