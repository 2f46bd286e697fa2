# SPDX-License-Identifier: Apache-2.0
"""Rotary position embeddings: read Hugging Face's keys with their defaults, write TensorRT-LLM's `rotary_scaling`.

Key locations, precedence and defaults follow transformers 5.23, src/transformers/modeling_rope_utils.py
(RotaryEmbeddingConfigMixin).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trtspec.checkpoints.model_config import ConfigReader, RopeScaling
from trtspec.core.errors import CheckpointError

KINDS = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")
SCALING, PARAMETERS = "rope_scaling", "rope_parameters"  # the section's names in transformers 4 and 5
ORIGINAL, SHARE, BASE = "original_max_position_embeddings", "partial_rotary_factor", "rope_theta"
_HAVE_ORIGINAL = ("llama3", "yarn", "longrope")
# The config keys of each kind, in addition to the base and the share of a head.
_READ = {
    "default": (),
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", ORIGINAL, "low_freq_factor", "high_freq_factor"),
    "yarn": (
        "factor", ORIGINAL, "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate",
    ),
    "longrope": ("factor", ORIGINAL, "attention_factor", "short_factor", "long_factor"),
}  # fmt: skip


@dataclass(frozen=True)
class Rotary:
    """Rotary embedding of a model: base and scaling of the frequencies, and the rotated share of a head."""

    base: float
    scaling: RopeScaling | None
    share: float = 1.0


def read_rotary(
    reader: ConfigReader,
    max_positions: int,
    base: float = 10000.0,
    kinds: Sequence[str] = KINDS,
    aliases: Mapping[str, str] | None = None,
) -> Rotary:
    """Return the rotary parameters that transformers derives from a config.json.

    transformers prefers `rope_scaling` to `rope_parameters` and completes the section with top-level keys; a top-level
    original length overrides the section's. `base` is the default of the config class, and `aliases` maps old names of
    kinds to current ones. Raises CheckpointError if two places have different values for a key, because engines differ
    in which one they use.
    """
    found = _merge(reader, max_positions, base, aliases or {})
    section = ConfigReader(found, reader.where)
    base = rotary_base(section)
    kind = section.get("rope_type", str)
    if kind not in kinds:
        raise reader.unsupported(f"rope type {kind!r} is not supported; supported: {', '.join(kinds)}")
    return Rotary(base, read_rope_scaling(section, max_positions), section.get(SHARE, float, 1.0))


def rotary_base(reader: ConfigReader, default: float = 10000.0) -> float:
    base = reader.get(BASE, float, default)
    if not (math.isfinite(base) and base > 1):
        raise reader.refuse_value(f"{BASE} is {base}, expected a number above 1")
    return base


def check_share(reader: ConfigReader, share: float) -> None:
    """Raise CheckpointError if `share` is not 1: transformers ignores partial rotation for most families."""
    if share != 1.0:
        message = f"{SHARE} is {share:g}, but models of this architecture rotate whole heads"
        hint = f"transformers ignores this key, other engines do not; remove {SHARE} to rotate whole heads"
        raise reader.refuse(message, hint)


def _merge(reader: ConfigReader, max_positions: int, base: float, aliases: Mapping[str, str]) -> dict[str, Any]:
    """Return the rotary keys of a config.json as transformers merges them."""
    scaling, parameters = reader.section(SCALING), reader.section(PARAMETERS)
    section, place = (scaling, SCALING) if scaling else (parameters, PARAMETERS)
    written = section.values if section else {}
    if nested := next((key for key, value in written.items() if isinstance(value, dict)), ""):
        message = f"{place}.{nested} is a section, but models of this architecture have the same keys for all layers"
        raise reader.refuse(message, f"if they apply to all layers, move the keys of {place}.{nested} to {place}")
    found = {key: value for key, value in written.items() if value is not None}
    kind = found["rope_type"] = _named(found.get("rope_type", found.get("type", "default")), aliases)
    top = {key: reader.values[key] for key in (BASE, SHARE, ORIGINAL) if reader.values.get(key) is not None}
    values = {BASE: base} | {key: value for key, value in top.items() if key != ORIGINAL} | found
    places = dict.fromkeys(top, _TOP) | dict.fromkeys(found, f"in {place}")
    if kind in _HAVE_ORIGINAL:
        values[ORIGINAL] = top.get(ORIGINAL, found.get(ORIGINAL, max_positions))
        places |= {ORIGINAL: _DEFAULT if ORIGINAL in reader.assumed else _TOP} if ORIGINAL in top else {}
    if kind == "yarn" and "factor" in written and written["factor"] is None:
        values["factor"] = (
            max_positions / values[ORIGINAL] if type(values[ORIGINAL]) is int and values[ORIGINAL] else None
        )
    statements = [(key, value, _TOP) for key, value in top.items() if key not in reader.assumed]
    statements += [(key, value, f"in {place}") for key, value in found.items()]
    if "type" in found:
        statements.append(("rope_type", _named(found["type"], aliases), f"in {place} under the key type"))
    if scaling and parameters:
        statements += _replaced(parameters, aliases)
    read = {"rope_type", BASE, SHARE, *(_READ.get(kind, ()) if isinstance(kind, str) else ())}
    for key, value, where in statements:
        if key in read and (key not in values or value != values[key]):
            taken = (values[key], places.get(key, _DEFAULT)) if key in values else ("missing", f"in {place}")
            raise conflicting_values_error(reader, key, (value, where), taken)
    return values


_TOP, _DEFAULT = "at the top level", "by the default of transformers"


def _named(kind: Any, aliases: Mapping[str, str]) -> Any:
    return aliases.get(kind, kind) if isinstance(kind, str) else kind


def _replaced(parameters: ConfigReader, aliases: Mapping[str, str]) -> list[tuple[str, Any, str]]:
    """Return (key, value, place) of `rope_parameters` that `rope_scaling` overrides; a "default" kind is omitted."""
    values = {key: value for key, value in parameters.values.items() if value is not None}
    kind = _named(values.pop("rope_type", values.pop("type", "default")), aliases)
    values.pop("type", None)
    found = [] if kind == "default" else [("rope_type", kind, f"in {PARAMETERS}")]
    return found + [(key, value, f"in {PARAMETERS}") for key, value in values.items()]


def conflicting_values_error(
    reader: ConfigReader, key: str, one: tuple[Any, str], taken: tuple[Any, str]
) -> CheckpointError:
    """Return the error for a key with two (value, place) pairs, of which transformers uses `taken`."""
    message = f"{key} is {_short(one[0])} {one[1]} and {_short(taken[0])} {taken[1]}"
    hint = f"transformers uses the value {taken[1]}, other engines may not; write the same {key} in both places"
    return reader.refuse(message, hint)


def _short(value: Any) -> str:
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def depends_on_positions(reader: ConfigReader) -> bool:
    """Return whether the RoPE scaling of a config.json depends on max_position_embeddings."""
    sections = [section.values for key in (SCALING, PARAMETERS) if (section := reader.section(key))]
    kinds = {str(section.get("rope_type", section.get("type", "default"))) for section in sections}
    if kinds <= {"default", "linear"}:
        return False
    has_original = any(ORIGINAL in values for values in (*sections, reader.values))
    has_factor = any(values.get("factor") is not None for values in sections)
    return "dynamic" in kinds or not (has_original and has_factor)


def read_rope_scaling(section: ConfigReader | None, max_positions: int) -> RopeScaling | None:
    """Return the RoPE scaling of `section`, or None for unscaled positions; raise CheckpointError if it is invalid."""
    if section is None:
        return None
    kind = section.get("rope_type", str, section.values.get("type") or "default")
    if kind == "default":
        return None
    if kind not in KINDS:
        raise section.unsupported(f"rope type {kind!r} is not supported; supported: {', '.join(KINDS)}")
    original = section.positive(ORIGINAL, max_positions)
    if kind == "longrope":
        return _longrope(section, original, max_positions)
    factor = _positive(section, "factor")
    if kind in ("linear", "dynamic"):
        return RopeScaling(kind, factor)
    if kind == "llama3":
        low, high = section.get("low_freq_factor", float), section.get("high_freq_factor", float)
        if not 0 < low < high:
            raise section.refuse_value(f"low_freq_factor is {low}, expected between 0 and high_freq_factor {high}")
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
    """Read LongRoPE parameters (arXiv 2402.13753); the default factor is `max_positions / original`."""
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
        raise section.refuse_value(f"{key} is {values}, expected positive numbers")
    return tuple(map(float, values))


def _yarn_attention_factor(section: ConfigReader, factor: float) -> float:
    """Return the factor of sines and cosines: `attention_factor`, or by default YaRN's (arXiv 2309.00071, eq. 22).

    With DeepSeek's keys `mscale` and `mscale_all_dim`, the default is the ratio of two such factors.
    """
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
        raise section.refuse_value(f"{key} is {value}, expected a positive number")
    return value


def render_rope_scaling(scaling: RopeScaling | None) -> dict[str, Any] | None:
    """Return the `rotary_scaling` of a TensorRT-LLM config, or None for unscaled positions and LongRoPE."""
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
    """Return the LongRoPE keys of TensorRT-LLM's Phi3Config, which are not part of `rotary_scaling`."""
    return {
        "position_embedding_type": "long_rope",
        "original_max_position_embeddings": scaling.original_max_position,
        "longrope_scaling_short_factors": list(scaling.short_factors),
        "longrope_scaling_long_factors": list(scaling.long_factors),
        # TensorRT-LLM computes this factor itself from the two lengths
        "longrope_attention_factor": scaling.attention_factor,
    }


def read_stored_scaling(document: ConfigReader, max_positions: int) -> RopeScaling | None:
    """Return the RoPE scaling in the config.json of a converted checkpoint, or None."""
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
