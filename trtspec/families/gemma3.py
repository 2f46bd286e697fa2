# SPDX-License-Identifier: Apache-2.0
"""Gemma 3 (text): Gemma 2 with norms of queries and keys instead of caps, and positions of their own under windows."""

from __future__ import annotations

from trtspec.checkpoint.model_config import ConfigReader, ModelConfig
from trtspec.checkpoint.rope import read_rope_scaling
from trtspec.checkpoint.trtllm import LAYER_KINDS
from trtspec.families.base import Family
from trtspec.families.decoder import decoder_skips, rotary_base
from trtspec.families.gemma2 import LOGIT_CAP, cap, read_gemma, rules


def read(reader: ConfigReader, dtype: str) -> ModelConfig:
    """Map a Gemma 3 config.json, which has the rotary positions of both kinds of layers."""
    whole, local = _rotary(reader)
    if read_rope_scaling(local, 1) is not None:
        raise local.refuse("rotary positions under a window are not scaled in engines")
    return read_gemma(
        reader,
        dtype,
        pattern=6,
        qk_norm=True,
        rotary_base=rotary_base(whole, 1_000_000.0),
        rope_scaling=read_rope_scaling(whole, reader.positive("max_position_embeddings")),
        local_rotary_base=rotary_base(local),
        logit_cap=cap(reader, LOGIT_CAP),
    )


def _rotary(reader: ConfigReader) -> tuple[ConfigReader, ConfigReader]:
    """Return what is said of rotary positions in layers without and with a window, by transformers 5 or before."""
    if nested := reader.section("rope_parameters"):
        empty = ConfigReader({}, nested.where)
        return nested.section(LAYER_KINDS[False]) or empty, nested.section(LAYER_KINDS[True]) or empty
    scaling, values = reader.section("rope_scaling"), reader.values
    whole = {**(scaling.values if scaling else {}), "rope_theta": values.get("rope_theta")}
    local = {"rope_theta": values.get("rope_local_base_freq")}
    return ConfigReader(whole, reader.where), ConfigReader(local, reader.where)


FAMILY = Family(architectures=("Gemma3ForCausalLM",), read=read, rules=rules, skips=decoder_skips)
