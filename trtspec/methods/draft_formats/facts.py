# SPDX-License-Identifier: Apache-2.0
"""The contents of a draft's config.json: facts, layer keys, keys that do not affect computation, and unknown keys.

Facts are neutral, independent of the dialect. They come from the methods' readers, which recipes also use. The target's
layers whose hidden states are read are numbered by their inputs: 0 is the embedding, the number of layers is the output
of the last layer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from trtspec.checkpoints.model_config import ModelConfig
from trtspec.checkpoints.source import Source
from trtspec.core.diagnostics import quote_value
from trtspec.methods.dflash.net import Keys, read_block_net
from trtspec.methods.draft_formats.base import DraftSchema, schemas_for
from trtspec.methods.draft_head import mask_token
from trtspec.methods.eagle3 import find_names, named_aux_layers, read_head_config
from trtspec.methods.medusa import find_heads

Facts = dict[str, Any]
Carried = dict[str, dict[str, Any]]

# A fact about the target that no dialect computes with; it is written only for dialects that have a key for it.
SOFT = "num_target_layers"

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


def _eagle3(source: Source, target: ModelConfig) -> Facts:
    """Return the facts of an EAGLE-3 head; `aux_layers` is None for EAGLE-3's default layers."""
    head = read_head_config(source, find_names(source), target)
    switches = ("norm_before_fc", "fc_norm", "norm_before_residual", "norm_output")
    return {
        "aux_layers": named_aux_layers(source) or None,
        "draft_vocab_size": head.layer.vocab_size,
        "target_hidden_size": head.target_hidden_size,
        SOFT: source.config.get(SOFT),
        **{switch: getattr(head, switch) for switch in switches},
    }


def _block(kind: str) -> Callable[[Source, ModelConfig], Facts]:
    def read(source: Source, target: ModelConfig) -> Facts:
        """Return the facts of a block net; `sliding_causal` is None without sliding-window layers."""
        net, keys = read_block_net(source, target.dtype, kind), Keys(source)
        slides = "sliding_attention" in keys.layer.get("layer_types", list, [])
        non_causal = keys.get("sliding_window_non_causal", bool, not keys.speculators)
        return {
            "block_size": net.block_size,
            "mask_token": net.mask_token,
            "hidden_layers": tuple(number + 1 for number in net.target_layers),
            SOFT: net.num_target_layers or None,
            "draft_vocab_size": net.draft_vocab_size,
            "target_hidden_size": net.target_hidden_size,
            "sample_from_anchor": net.drafts_at_anchor,
            "causal": keys.get("causal", bool, False),
            "sliding_causal": not non_causal if slides else None,
            "markov_rank": net.markov_rank or None,
            "markov_head": net.markov_head or None,
            "has_confidence": net.confidence_width > 0 if kind == "dspark" else None,
            "confidence_with_markov": net.confidence_width > net.layer.hidden_size if net.confidence_width else None,
        }

    return read


def _medusa(source: Source, target: ModelConfig) -> Facts:
    heads = find_heads(source)
    return {
        "num_heads": heads.num_heads,
        "num_layers": heads.num_layers,
        "hidden_size": heads.hidden_size,
        "vocab_size": heads.vocab_size or target.vocab_size,
        "has_bias": heads.has_bias,
        "shares_lm_head": heads.shared is not None,
        SOFT: None,
    }


READERS: Mapping[str, Callable[[Source, ModelConfig], Facts]] = {
    "eagle3": _eagle3,
    "p_eagle": lambda source, target: {**_eagle3(source, target), "mask_token": mask_token(source)},
    "dflash": _block("dflash"),
    "dspark": _block("dspark"),
    "medusa": _medusa,
}


def neutral(fact: str, layer: Mapping[str, Any]) -> Any:
    """Return the neutral value of a fact, which is the one of the unmodified method, for layers of that config."""
    sizes = {"draft_vocab_size": "vocab_size", "target_hidden_size": "hidden_size"}
    return layer.get(sizes[fact]) if fact in sizes else None


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


def layer_keys(source: Source, schema: DraftSchema) -> dict[str, Any]:
    """Return the config of a draft's layers; it is empty for Medusa heads."""
    if schema.names:
        return {}
    section = source.reader.section(schema.section) if schema.section else source.reader
    return {key: value for key, value in (section.values if section else {}).items() if key in LAYER_KEYS}


def carried_keys(source: Source, name: str, schema: DraftSchema, drop: frozenset[str]) -> Carried:
    """Return the keys that do not affect computation, by dialect, including keys from earlier conversions."""
    kept = source.reader.section(CARRIED)
    carried = {key: dict(value) for key, value in (kept.values if kept else {}).items() if isinstance(value, dict)}
    paths = {**schema.carried, **(dict.fromkeys(LAYER_KEYS) if schema.section else {})}
    found = {key: get_path(source.config, tuple(key.split("."))) for key in paths if key not in drop}
    if found := {key: value for key, value in found.items() if value is not None}:
        carried[name] = {**carried.get(name, {}), **found}
    return carried


def check_keys(source: Source, kind: str, schema: DraftSchema, drop: frozenset[str]) -> None:
    """Raise CheckpointError if a key is unknown to all dialects or a fixed key has an unsupported value."""
    if unsupported := [key for key in _unsupported_keys(source, kind, schema) if key not in drop]:
        hint = f"if it does not affect computation, ignore it with --drop {unsupported[0]}"
        message = f"has keys unknown to all dialects of {kind}: {', '.join(unsupported[:8])}"
        raise source.reader.refuse(message, hint)
    for path, value in schema.fixed.items():
        found = get_path(source.config, path)
        if found is not None and found != value:
            raise source.reader.refuse_value(f"{'.'.join(path)} is {quote_value(found)}, expected {quote_value(value)}")


def _unsupported_keys(source: Source, kind: str, schema: DraftSchema) -> Iterator[str]:
    paths = {path for each in schemas_for(kind).values() for path in each.paths}
    # vLLM would interpret a layer key such as num_hidden_layers as a key of the Medusa heads
    of_layers = LAYER_KEYS if schema.names is None or find_heads(source).names.prefix else ()
    outer = {*(path[0] for path in paths), "architectures", CARRIED, schema.section, *of_layers, *_ALIASES}
    yield from _extra_keys(source.config, "", outer)
    if schema.section:
        yield from _extra_keys(source.config.get(schema.section), f"{schema.section}.", {*LAYER_KEYS, "architectures"})
    for section in {path[0] for path in paths if len(path) > 1}:
        inner = {path[1] for path in paths if path[0] == section and len(path) > 1}
        yield from _extra_keys(source.config.get(section), f"{section}.", inner | _ALIASES)


def _extra_keys(section: Any, prefix: str, known: Collection[str | None]) -> Iterator[str]:
    if isinstance(section, dict):
        yield from (f"{prefix}{key}" for key, value in section.items() if value is not None and key not in known)
