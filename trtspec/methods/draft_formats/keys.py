# SPDX-License-Identifier: Apache-2.0
"""The keys of a draft's config.json: layer keys, keys that do not affect computation, and unknown keys."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from trtspec.checkpoints.source import Source
from trtspec.core.diagnostics import quote_value
from trtspec.methods.draft_formats.dialect import DraftSchema, schemas_for
from trtspec.methods.medusa.heads import find_heads

CARRIED = "trtspec_carried"  # by dialect: keys that other dialects lack and that do not affect computation
LEFT_OUT = "left_out"  # among its facts: shared target tensors that the conversion omitted
# Keys of transformers' config classes for the layers, which all dialects use unchanged.
LAYER_KEYS = frozenset({
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "hidden_act", "rms_norm_eps", "vocab_size", "max_position_embeddings", "rope_theta", "rope_scaling",
    "rope_parameters", "partial_rotary_factor", "attention_bias", "attention_dropout", "mlp_bias",
    "tie_word_embeddings", "initializer_range", "use_cache", "bos_token_id", "eos_token_id", "pad_token_id",
    "torch_dtype", "dtype", "model_type", "layer_types", "sliding_window", "use_sliding_window", "max_window_layers",
    "pretraining_tp", "transformers_version", "_name_or_path",
})  # fmt: skip
# Other keys of facts that the methods' readers support.
_ALIASES = frozenset({
    "mask_token_id", "pard_token", "ptd_token_id", "eagle_aux_hidden_state_layer_ids", "norm_before_residual",
    "norm_before_fc", "norm_output", "fc_norm", "return_hidden_post_norm", "target_hidden_size", "draft_vocab_size",
    "num_target_layers", "sample_from_anchor", "block_size", "target_layer_ids", "markov_rank", "markov_head_type",
    "confidence_head_with_markov",
})  # fmt: skip

Carried = dict[str, dict[str, Any]]


def get_path(config: Mapping[str, Any], path: tuple[str, ...]) -> Any:
    """Return the value at a path of keys, or None if it is missing."""
    found: Any = config
    for key in path:
        found = found.get(key) if isinstance(found, dict) else None
    return found


def set_path(config: dict[str, Any], path: tuple[str, ...], value: Any) -> None:
    """Set the value at a path of keys."""
    for key in path[:-1]:
        config = config.setdefault(key, {})
    config[path[-1]] = value


def layer_keys(source: Source, form: DraftSchema) -> dict[str, Any]:
    """Return the config of a draft's layers; it is empty for Medusa heads."""
    if form.names:
        return {}
    section = source.reader.section(form.section) if form.section else source.reader
    return {key: value for key, value in (section.values if section else {}).items() if key in LAYER_KEYS}


def carried_keys(source: Source, name: str, form: DraftSchema, drop: frozenset[str]) -> Carried:
    """Return the keys that do not affect computation, by dialect, including keys from earlier conversions."""
    kept = source.reader.section(CARRIED)
    carried = {key: dict(value) for key, value in (kept.values if kept else {}).items() if isinstance(value, dict)}
    paths = {**form.carried, **(dict.fromkeys(LAYER_KEYS) if form.section else {})}
    found = {key: get_path(source.config, tuple(key.split("."))) for key in paths if key not in drop}
    if found := {key: value for key, value in found.items() if value is not None}:
        carried[name] = {**carried.get(name, {}), **found}
    return carried


def check_keys(source: Source, kind: str, form: DraftSchema, drop: frozenset[str]) -> None:
    """Raise CheckpointError if a key is unknown to all dialects or a fixed key has an unsupported value."""
    if unsupported := [key for key in _unsupported_keys(source, kind, form) if key not in drop]:
        hint = f"if it does not affect computation, ignore it with --drop {unsupported[0]}"
        message = f"has keys unknown to all dialects of {kind}: {', '.join(unsupported[:8])}"
        raise source.reader.refuse(message, hint)
    for path, value in form.fixed.items():
        found = get_path(source.config, path)
        if found is not None and found != value:
            raise source.reader.refuse_value(f"{'.'.join(path)} is {quote_value(found)}, expected {quote_value(value)}")


def _unsupported_keys(source: Source, kind: str, form: DraftSchema) -> Iterator[str]:
    paths = {path for each in schemas_for(kind).values() for path in each.paths}
    # vLLM would interpret a layer key such as num_hidden_layers as a key of the Medusa heads
    of_layers = LAYER_KEYS if form.names is None or find_heads(source).names.prefix else ()
    outer = {*(path[0] for path in paths), "architectures", CARRIED, form.section, *of_layers, *_ALIASES}
    yield from _extra_keys(source.config, "", outer)
    if form.section:
        yield from _extra_keys(source.config.get(form.section), f"{form.section}.", {*LAYER_KEYS, "architectures"})
    for section in {path[0] for path in paths if len(path) > 1}:
        inner = {path[1] for path in paths if path[0] == section and len(path) > 1}
        yield from _extra_keys(source.config.get(section), f"{section}.", inner | _ALIASES)


def _extra_keys(section: Any, prefix: str, known: Collection[str | None]) -> Iterator[str]:
    if isinstance(section, dict):
        yield from (f"{prefix}{key}" for key, value in section.items() if value is not None and key not in known)
