# SPDX-License-Identifier: Apache-2.0
"""Layers that were trained with the target to predict further tokens draft a chain (multi-token prediction).

DeepSeek-V3, arXiv:2412.19437, section 2.2. The layers lie in the target's own checkpoint, under names of the model's,
so there is nothing to convert: engines that run the source as it is know which they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtspec.methods.base import Method

# What config.json says the number of layers under, by model; vllm-project/vllm:vllm/config/speculative.py@v0.24.0.
LAYER_KEYS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")


def count_layers(source_config: Mapping[str, Any]) -> int:
    """Return how many layers predict further tokens, 0 where a source's config.json names none."""
    own = source_config.get("text_config")
    for config in (source_config, own if isinstance(own, Mapping) else {}):
        for key in LAYER_KEYS:
            if isinstance(number := config.get(key), int):
                return number
    return 0


METHOD = Method(
    summary="the target's own layers for further tokens draft a chain",
    drafts_with="nothing",
    draft_lens=range(1, 17),
    default_draft_len=1,
)
