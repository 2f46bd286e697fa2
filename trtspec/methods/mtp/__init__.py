# SPDX-License-Identifier: Apache-2.0
"""Multi-token prediction (MTP): layers trained with the target to predict further tokens draft a chain.

DeepSeek-V3, arXiv:2412.19437, section 2.2. The layers are part of the target's checkpoint and are not converted. They
are used by engines that load the unchanged source.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtspec.checkpoints.source import Source
from trtspec.methods.base import Method, Suggestion

# The keys of config.json for the number of layers; vllm-project/vllm:vllm/config/speculative.py@v0.24.0.
LAYER_KEYS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")


def count_layers(source_config: Mapping[str, Any]) -> int:
    """Return the number of MTP layers in a source's config.json; 0 without MTP layers."""
    text_config = source_config.get("text_config")
    for config in (source_config, text_config if isinstance(text_config, Mapping) else {}):
        for key in LAYER_KEYS:
            if isinstance(number := config.get(key), int):
                return number
    return 0


def _suggest(source: Source) -> Suggestion | None:
    layers = count_layers(source.config)
    return Suggestion(0, f"the target has MTP layers for drafting ({layers})") if layers else None


METHOD = Method(
    summary="the target's MTP layers draft a chain",
    drafts_with="nothing",
    draft_lens=range(1, 17),
    default_draft_len=1,
    suggest=_suggest,
)
