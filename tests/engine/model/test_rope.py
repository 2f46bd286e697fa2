# SPDX-License-Identifier: Apache-2.0
"""Rotary frequencies are bit-identical to transformers' for every kind of scaling."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from trtspec.checkpoints.model_config import ConfigReader
from trtspec.engine.model.positions import attention_factor, frequencies, rotations
from trtspec.families.llama import read

MAX_POSITIONS = 32768
KINDS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 3.7},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0},
    "llama3": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "llama3, few stay": {
        "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.5, "high_freq_factor": 2.0,
        "original_max_position_embeddings": 64,
    },
    "yarn": {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 4096},
    "yarn, not truncated": {
        "rope_type": "yarn", "factor": 3.7, "original_max_position_embeddings": 64, "beta_fast": 8.0,
        "beta_slow": 0.5, "truncate": False,
    },
    "yarn, one ramp of no width": {
        "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 4096, "beta_fast": 1.0,
        "truncate": False,
    },
    "yarn, factor given": {
        "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 4096, "attention_factor": 0.75,
    },
    "yarn, DeepSeek's two": {
        "rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 4096, "mscale": 0.7,
        "mscale_all_dim": 1.1,
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
@pytest.mark.parametrize("base", [1e4, 5e5])
@pytest.mark.parametrize("size", [4, 96, 128])
def test_frequencies_and_rotations_equal_transformers(kind: dict[str, Any], base: float, size: int) -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    theirs = LlamaConfig(
        architectures=["LlamaForCausalLM"], hidden_size=4 * size, num_attention_heads=4, dtype="bfloat16",
        max_position_embeddings=MAX_POSITIONS, rope_parameters=kind | {"rope_theta": base},
    )  # fmt: skip
    ours = read(ConfigReader(theirs.to_dict(), "config.json"), "auto")
    oracle = LlamaRotaryEmbedding(theirs)
    assert torch.equal(frequencies(ours), oracle.inv_freq)
    assert attention_factor(ours) == oracle.attention_scaling
    positions = torch.arange(1024)
    cosines, sines = oracle(torch.empty(0, dtype=torch.float32), positions.unsqueeze(0))
    pairs = rotations(ours, len(positions)).squeeze(1)
    torch.testing.assert_close(pairs.real, cosines[0, :, : size // 2], rtol=0, atol=3e-7)
    torch.testing.assert_close(pairs.imag, sines[0, :, : size // 2], rtol=0, atol=3e-7)
