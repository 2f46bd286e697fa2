# SPDX-License-Identifier: Apache-2.0
"""Gemma 3 (text): Gemma 2 with QK norms instead of soft caps, and separate RoPE settings in windowed layers."""

from __future__ import annotations

from typing import Any

from trtspec.checkpoints.model_config import ConfigReader, ModelConfig
from trtspec.checkpoints.rope import (
    PARAMETERS,
    SCALING,
    SHARE,
    Rotary,
    check_share,
    conflicting_values_error,
    read_rotary,
)
from trtspec.checkpoints.rules import Family
from trtspec.checkpoints.trtllm import LAYER_KINDS
from trtspec.families.decoder import decoder_skips
from trtspec.families.gemma2 import LOGIT_CAP, cap, read_gemma, rules

# The defaults of transformers' Gemma3TextConfig, 5.23.
DEFAULTS = {
    "vocab_size": 262_208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-06, "sliding_window": 4096,
}  # fmt: skip


def read(reader: ConfigReader, dtype: str) -> ModelConfig:
    """Return the config of a Gemma 3 model, with the rotary positions of layers with and without a sliding window."""
    reader = reader.with_defaults(DEFAULTS)
    rotary, local_base = _rotary(reader)
    return read_gemma(
        reader,
        dtype,
        pattern=reader.positive("sliding_window_pattern", 6),
        qk_norm=True,
        rotary=rotary,
        local_rotary_base=local_base,
        logit_cap=cap(reader, LOGIT_CAP),
    )


def _rotary(reader: ConfigReader) -> tuple[Rotary, float]:
    """Return the rotary positions of layers without a window, and the rotary base of layers with one.

    `rope_parameters` has a section per kind of layer. `rope_scaling` and top-level keys complete the section of layers
    without a window (transformers, Gemma3TextConfig.convert_rope_params_to_dict).
    """
    nested = reader.section(PARAMETERS) or ConfigReader({}, reader.where)
    whole, local = (nested.section(LAYER_KINDS[window]) for window in (False, True))
    if stray := next((key for key in nested.values if key not in LAYER_KINDS.values()), ""):
        message = f"{PARAMETERS} has {stray!r} in addition to the sections {' and '.join(LAYER_KINDS.values())}"
        raise reader.refuse(message, "transformers ignores it: move it to the section of the layers that it applies to")
    for section, top in ((whole, "rope_theta"), (local, "rope_local_base_freq")):
        inner, outer = section.values.get("rope_theta") if section else None, reader.values.get(top)
        if None not in (inner, outer) and inner != outer:
            kind = LAYER_KINDS[section is local]
            values = (outer, f"at the top level ({top})"), (inner, f"in {PARAMETERS}.{kind}")
            raise conflicting_values_error(reader, "rope_theta", *values)
    found = _completed(reader, whole)
    positions, local_values = reader.positive("max_position_embeddings"), local.values if local else {}
    rotary = read_rotary(ConfigReader(found, reader.where), positions, 1_000_000.0)
    unscaled = read_rotary(ConfigReader({PARAMETERS: local_values}, reader.where), positions)
    for each in (rotary, unscaled):
        check_share(reader, each.share)
    if unscaled.scaling:
        raise reader.unsupported("scaled rotary positions in layers with a window are not supported by the conversion")
    local_base = reader.get("rope_local_base_freq", float, 10000.0)
    return rotary, unscaled.base if "rope_theta" in local_values else local_base


def _completed(reader: ConfigReader, whole: ConfigReader | None) -> dict[str, Any]:
    """Return the rotary keys of layers without a window, collected in one `rope_parameters` section."""
    section: dict[str, Any] = {"rope_type": "default"} if reader.values.get(PARAMETERS) is None else {}
    section |= whole.values if whole else {}
    scaling = reader.section(SCALING)
    for key, value in (scaling.values if scaling else {}).items():
        before = section.get(key)
        if whole and before not in (None, value) and (key, before) != ("rope_type", "default"):
            raise conflicting_values_error(reader, key, (before, f"in {PARAMETERS}"), (value, f"in {SCALING}"))
        section[key] = value
    if {"type", "rope_type"} <= section.keys() and section["type"] != section["rope_type"]:
        taken = section["rope_type"], "by the default of transformers, which ignores the key type"
        ignored = section["type"], f"in {SCALING} under the key type"
        raise conflicting_values_error(reader, "rope_type", ignored, taken)
    if section.get("truncate") is False:
        message = "truncate is false for YaRN, but transformers ignores it in sections of layers"
        raise reader.refuse(message, "remove it")
    keys = ("rope_theta", SHARE)
    return {PARAMETERS: section} | {key: reader.values[key] for key in keys if reader.values.get(key) is not None}


FAMILY = Family(architectures=("Gemma3ForCausalLM",), read=read, rules=rules, skips=decoder_skips)
