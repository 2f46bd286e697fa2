# SPDX-License-Identifier: Apache-2.0
"""The memory use of decoders, compared with published or hand-computed numbers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Run
from trtspec.checkpoints.memory_profile import LayerCache, MemoryProfile, read_memory_profile
from trtspec.checkpoints.source import Source
from trtspec.core.errors import CheckpointError

SIZES = {
    "hidden_size": 64,
    "vocab_size": 100,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "num_hidden_layers": 4,
    "head_dim": 16,
    "intermediate_size": 128,
    "max_position_embeddings": 1000,
}


def outline(**config: Any) -> MemoryProfile:
    return read_memory_profile(Source(Path("model"), SIZES | config, {}))


def test_kv_cache_stores_whole_heads_on_each_rank() -> None:
    found = outline()
    assert found.layers == (LayerCache(4, 32),) * 4
    assert found.cache_bytes(2, 10, tensor=1, item_bytes=2) == 2 * 10 * 4 * 4 * 32 * 2
    assert found.cache_bytes(2, 10, tensor=8, item_bytes=2) == 2 * 10 * 4 * 1 * 32 * 2


def test_mla_latent_cache_is_replicated_on_every_rank() -> None:
    """DeepSeek V3: 70,272 bytes per token in 16 bits (arXiv:2505.09343, table 1: 70.272 KB)."""
    found = outline(num_hidden_layers=61, kv_lora_rank=512, qk_rope_head_dim=64)
    assert found.cache_bytes(1, 1, tensor=1, item_bytes=2) == 70_272
    assert found.cache_bytes(1, 1, tensor=8, item_bytes=2) == 70_272


def test_sliding_window_layers_cache_at_most_the_window() -> None:
    kinds = ["sliding_attention", "full_attention"] * 2
    found = outline(layer_types=kinds, sliding_window=5)
    assert found.cache_bytes(1, 100, tensor=1, item_bytes=1) == (2 * 5 + 2 * 100) * 4 * 32
    assert outline(sliding_window_pattern=2, sliding_window=5) == found


def test_sizes_missing_from_config_use_the_class_defaults() -> None:
    """Gemma 3 4B's config has neither its vocabulary nor its heads; every sixth layer is without a window."""
    text = {"model_type": "gemma3_text", "hidden_size": 2560, "num_hidden_layers": 34, "sliding_window": 1024}
    found = read_memory_profile(Source(Path("model"), {"model_type": "gemma3", "text_config": text}, {}))
    assert (found.vocab_size, found.max_positions, found.kept_numbers) == (262_208, 131_072, 262_208 * 2560)
    assert [layer.window for layer in found.layers[:6]] == [1024] * 5 + [0]
    assert found.layers[5] == LayerCache(4, 512)


def test_linear_attention_cache_is_constant_and_full_attention_cache_grows_per_token() -> None:
    """Qwen3.8-27B: 65,536 bytes per token, and 150,994,944 bytes of state per text in float32."""
    linear = {"linear_num_value_heads": 48, "linear_key_head_dim": 128, "linear_value_head_dim": 128}
    found = outline(num_hidden_layers=64, head_dim=256, full_attention_interval=4, **linear)
    assert found.cache_bytes(1, 0, tensor=1, item_bytes=2) == 150_994_944
    assert found.cache_bytes(1, 1, tensor=1, item_bytes=2) - 150_994_944 == 65_536


def test_shared_layers_have_no_cache_and_global_layers_use_global_head_dim() -> None:
    kinds = ["sliding_attention", "full_attention"] * 2
    found = outline(layer_types=kinds, sliding_window=5, num_kv_shared_layers=2, global_head_dim=32)
    assert found.layers == (LayerCache(4, 32, 5), LayerCache(4, 64))


def test_text_config_section_gives_the_same_profile() -> None:
    assert read_memory_profile(Source(Path("model"), {"text_config": SIZES}, {})) == outline()


@pytest.mark.parametrize("key", ["hidden_size", "vocab_size", "num_hidden_layers", "max_position_embeddings"])
def test_missing_size_is_an_error(key: str) -> None:
    with pytest.raises(CheckpointError, match=f"lacks '{key}'"):
        outline(**{key: None})


class TestARecipe:
    @pytest.fixture
    def unknown(self, recipe: Path) -> Path:
        """The tiny pair, with an architecture without a family."""
        for name in ("target", "draft"):
            config = recipe.parent / name / "config.json"
            config.write_text(json.dumps({**json.loads(config.read_text()), "architectures": ["NewForCausalLM"]}))
        return recipe

    def test_plan_reports_memory_of_an_undescribed_architecture(self, unknown: Path, trtspec: Run) -> None:
        backend = ("--set", "engine.backend=vllm", "--set", "engine.gpu=h100")
        checked = trtspec("check", unknown, *backend, "--json").document
        assert (checked["ok"], checked["problems"]) == (True, [])
        [memory] = trtspec("plan", unknown, *backend, "--json").document["memory"]["gpus"]
        weights = trtspec("inspect", unknown.parent / "target", "--json").document["bytes"]
        assert memory["weights_bytes"] == weights
        assert all(memory[f"{part}_bytes"] > 0 for part in ("kv_cache", "draft", "activation", "limit"))

    def test_max_seq_len_above_the_targets_positions_is_reported(self, unknown: Path, trtspec: Run) -> None:
        sizes = ("--set", "engine.backend=vllm", "--set", "engine.max_seq_len=1000000")
        assert "max_seq_len 1000000 is more than the target's" in " ".join(
            trtspec("check", unknown, *sizes).out.split()
        )

    def test_missing_config_size_is_reported_by_check(self, unknown: Path, trtspec: Run) -> None:
        config = unknown.parent / "target" / "config.json"
        config.write_text(json.dumps({**json.loads(config.read_text()), "num_hidden_layers": None}))
        said = " ".join(trtspec("check", unknown, "--set", "engine.backend=vllm").out.split())
        assert "no family describes NewForCausalLM, and its config lacks 'num_hidden_layers'" in said
