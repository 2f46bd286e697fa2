# SPDX-License-Identifier: Apache-2.0
"""Rotary scaling in Hugging Face's words, which TensorRT-LLM's `rotary_scaling` takes over: read, defaulted, written.

Defaults are those of transformers, src/transformers/modeling_rope_utils.py.
"""

from __future__ import annotations

import math
from typing import Any

from trtspec.checkpoint.model_config import ConfigReader, RopeScaling

KINDS = ("default", "linear", "dynamic", "llama3", "yarn")


def read_rope_scaling(section: ConfigReader | None, max_positions: int) -> RopeScaling | None:
    """Return the scaling that `section` describes, or None for plain rotary positions; raises CheckpointError."""
    if section is None:
        return None
    kind = section.get("rope_type", str, section.values.get("type") or "default")
    if kind == "default":
        return None
    if kind not in KINDS:
        raise section.refuse(f"rope type {kind!r} is not supported; supported: {', '.join(KINDS)}")
    factor = _positive(section, "factor")
    if kind in ("linear", "dynamic"):
        return RopeScaling(kind, factor)
    original = section.positive("original_max_position_embeddings", max_positions)
    if kind == "llama3":
        low, high = section.get("low_freq_factor", float), section.get("high_freq_factor", float)
        if not 0 < low < high:
            raise section.refuse(f"low_freq_factor is {low}, expected between 0 and high_freq_factor {high}")
        return RopeScaling(kind, factor, original, low, high)
    return RopeScaling(
        kind,
        factor,
        original,
        beta_fast=_positive(section, "beta_fast", 32.0),
        beta_slow=_positive(section, "beta_slow", 1.0),
        attention_factor=_yarn_attention_factor(section, factor),
        truncate=section.get("truncate", bool, True),
    )


def _yarn_attention_factor(section: ConfigReader, factor: float) -> float:
    """Return what sines and cosines are multiplied by: YaRN (arXiv 2309.00071) eq. 22, or DeepSeek's ratio of two."""
    if section.values.get("attention_factor") is not None:
        return _positive(section, "attention_factor")

    def mscale(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    if section.values.get("mscale") and section.values.get("mscale_all_dim"):
        return mscale(_positive(section, "mscale")) / mscale(_positive(section, "mscale_all_dim"))
    return mscale(1.0)


def _positive(section: ConfigReader, key: str, default: float | None = None) -> float:
    value = section.get(key, float, default)
    if not (math.isfinite(value) and value > 0):
        raise section.refuse(f"{key} is {value}, expected a positive number")
    return value


def render_rope_scaling(scaling: RopeScaling | None) -> dict[str, Any] | None:
    """Return the mapping for `rotary_scaling`; versions of TensorRT-LLM differ in looking for `type` or `rope_type`."""
    if scaling is None:
        return None
    rendered: dict[str, Any] = {"rope_type": scaling.kind, "type": scaling.kind, "factor": scaling.factor}
    if scaling.kind in ("llama3", "yarn"):
        rendered["original_max_position_embeddings"] = scaling.original_max_position
    if scaling.kind == "llama3":
        rendered |= {"low_freq_factor": scaling.low_freq_factor, "high_freq_factor": scaling.high_freq_factor}
    if scaling.kind == "yarn":
        for key in ("beta_fast", "beta_slow", "attention_factor", "truncate"):
            rendered[key] = getattr(scaling, key)
    return rendered
