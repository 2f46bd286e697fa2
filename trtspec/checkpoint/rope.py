# SPDX-License-Identifier: Apache-2.0
"""Rotary scaling in Hugging Face's words, which TensorRT-LLM's `rotary_scaling` takes over: read, defaulted, written.

Defaults are those of transformers, src/transformers/modeling_rope_utils.py.
"""

from __future__ import annotations

import math
from typing import Any

from trtspec.checkpoint.model_config import ConfigReader, RopeScaling

KINDS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")


def read_rope_scaling(section: ConfigReader | None, max_positions: int) -> RopeScaling | None:
    """Return the scaling that `section` describes, or None for plain rotary positions; raises CheckpointError."""
    if section is None:
        return None
    kind = section.get("rope_type", str, section.values.get("type") or "default")
    if kind == "default":
        return None
    if kind not in KINDS:
        raise section.refuse(f"rope type {kind!r} is not supported; supported: {', '.join(KINDS)}")
    original = section.positive("original_max_position_embeddings", max_positions)
    if kind == "longrope":
        return _longrope(section, original, max_positions)
    factor = _positive(section, "factor")
    if kind in ("linear", "dynamic"):
        return RopeScaling(kind, factor)
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


def _longrope(section: ConfigReader, original: int, max_positions: int) -> RopeScaling:
    """Read LongRoPE (arXiv 2402.13753); how far positions are stretched follows from both lengths where not given."""
    factor = _positive(section, "factor", max_positions / original)
    default = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 < original else 1.0
    return RopeScaling(
        "longrope",
        factor,
        original,
        attention_factor=_positive(section, "attention_factor", default),
        short_factors=_factors(section, "short_factor"),
        long_factors=_factors(section, "long_factor"),
    )


def _factors(section: ConfigReader, key: str) -> tuple[float, ...]:
    values = section.get(key, list)
    if not all(type(value) in (int, float) and math.isfinite(value) and value > 0 for value in values):
        raise section.refuse(f"{key} is {values}, expected positive numbers")
    return tuple(map(float, values))


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
    if scaling is None or scaling.kind == "longrope":
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


def render_longrope(scaling: RopeScaling) -> dict[str, Any]:
    """Return the keys of Phi3Config, which has its factors beside `rotary_scaling`, and what the factors go with."""
    return {
        "position_embedding_type": "long_rope",
        "original_max_position_embeddings": scaling.original_max_position,
        "longrope_scaling_short_factors": list(scaling.short_factors),
        "longrope_scaling_long_factors": list(scaling.long_factors),
        # TensorRT-LLM computes it from the two lengths
        "longrope_attention_factor": scaling.attention_factor,
    }


def read_stored_scaling(document: ConfigReader, max_positions: int) -> RopeScaling | None:
    """Return the scaling that the config.json of a converted checkpoint describes."""
    if "longrope_scaling_short_factors" not in document.values:
        return read_rope_scaling(document.section("rotary_scaling"), max_positions)
    names = {
        "short_factor": "longrope_scaling_short_factors",
        "long_factor": "longrope_scaling_long_factors",
        "attention_factor": "longrope_attention_factor",
        "original_max_position_embeddings": "original_max_position_embeddings",
    }
    values = {key: document.values.get(name) for key, name in names.items()}
    return read_rope_scaling(ConfigReader(values | {"rope_type": "longrope"}, document.where), max_positions)
