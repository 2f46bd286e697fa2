# SPDX-License-Identifier: Apache-2.0
"""Multi-token prediction: the keys for the number of MTP layers."""

from __future__ import annotations

import pytest

from trtspec.backends.base import backends_for_method, engine_arguments
from trtspec.methods.base import DraftShape, find_method
from trtspec.methods.mtp import count_layers


@pytest.mark.parametrize(
    ("config", "layers"),
    [
        ({"num_nextn_predict_layers": 1}, 1),  # DeepSeek-V3, MiMo, GLM-4.5
        ({"num_nextn_predict_layers": 3}, 3),
        ({"text_config": {"mtp_num_hidden_layers": 1}}, 1),  # Qwen3.5
        ({"num_mtp_modules": 7}, 7),  # MiniMax-M3
        ({"num_nextn_predict_layers": 0}, 0),
        ({"num_nextn_predict_layers": None, "text_config": None}, 0),
        ({"num_hidden_layers": 32}, 0),
    ],
)
def test_mtp_layers_are_counted_from_the_config(config, layers: int) -> None:
    assert count_layers(config) == layers


def test_mtp_drafts_a_chain_without_draft_model_or_build_arguments() -> None:
    method = find_method("mtp")
    assert method.draft_shape(method.options(), 3) == DraftShape(3, 3)
    assert method.drafts_with == "nothing"
    assert backends_for_method("mtp") == ["edge_llm", "llmapi", "sglang", "vllm"]
    assert engine_arguments("mtp", DraftShape(3, 3)) == []
