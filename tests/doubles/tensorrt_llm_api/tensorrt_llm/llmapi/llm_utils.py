# SPDX-License-Identifier: Apache-2.0
"""Conversion of a model.yaml to arguments; in the older version, sections must be objects before LLM gets them."""

from __future__ import annotations

from typing import Any

from tensorrt_llm.llmapi.llm_args import IS_OLD, DecodingBaseConfig


def update_llm_args_with_extra_dict(llm_args: dict[str, Any], extra: dict[str, Any]) -> dict[str, Any]:
    made = dict(extra)
    if IS_OLD and "speculative_config" in made:
        made["speculative_config"] = DecodingBaseConfig.from_dict(made["speculative_config"])
    return llm_args | made
