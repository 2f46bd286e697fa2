# SPDX-License-Identifier: Apache-2.0
"""A draft as it lies in a source, told apart from the dialect that it is written in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from trtspec.checkpoint.model_config import ConfigReader, ModelConfig
from trtspec.checkpoint.rules import match
from trtspec.checkpoint.safetensors import TensorInfo
from trtspec.checkpoint.source import Source
from trtspec.checkpoint.trtllm import MOST_LAYERS
from trtspec.diagnostics import Diagnostic
from trtspec.dialects.dialect import Form, forms_of
from trtspec.dialects.facts import READERS, SOFT, Facts
from trtspec.errors import CheckpointError
from trtspec.families.decoder import read_decoder
from trtspec.methods.base import HeadTarget, find_method, methods
from trtspec.methods.eagle3 import find_names
from trtspec.models.source_model import SourceModel

CARRIED = "trtspec_carried"  # what a dialect says that another has no key for and nothing computes with, by dialect
# Keys of transformers' config classes for the layers, which all dialects take over as they are.
LAYER_KEYS = frozenset(
    "hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim hidden_act "
    "rms_norm_eps vocab_size max_position_embeddings rope_theta rope_scaling rope_parameters partial_rotary_factor "
    "attention_bias attention_dropout mlp_bias tie_word_embeddings initializer_range use_cache bos_token_id "
    "eos_token_id pad_token_id torch_dtype dtype model_type layer_types sliding_window use_sliding_window "
    "max_window_layers pretraining_tp transformers_version _name_or_path".split()
)


@dataclass(frozen=True)
class Draft:
    """A draft of one `kind`, a method's name, that was found in the dialect `dialect`.

    `layer` is the config of its layers, `tensors` are by the names that most dialects share. `carried` are keys by
    dialect that nothing computes with. `warnings` are what its readers warn of.
    """

    kind: str
    dialect: str
    facts: Facts
    layer: dict[str, Any]
    tensors: dict[str, TensorInfo]
    carried: dict[str, dict[str, Any]]
    where: str
    warnings: tuple[Diagnostic, ...]

    def refuse(self, message: str, hint: str | None = None) -> CheckpointError:
        """Return the error to raise for this draft."""
        return CheckpointError(message, where=self.where, hint=hint)


def read_draft(source: Source, target: SourceModel | None = None, drop: frozenset[str] = frozenset()) -> Draft:
    """Read a draft in whatever dialect it is; without a target it is held against what it says of its own.

    `drop` are keys of config.json to leave out. Raises CheckpointError for what is no draft, does not add up, does not go
    with the target, or has keys that no dialect is known to have.
    """
    kind = _kind_of(source)
    if source.quantization or source.config.get("quantization_config"):
        raise source.reader.refuse("its weights are quantized; drafts are converted from unquantized ones")
    config = target.config if target else _claimed(source)
    warnings = tuple(_check(source, kind, config, target))
    name = _dialect_of(source, kind)
    form = forms_of(kind)[name]
    layer, carried = _sort_keys(source, kind, name, form, drop)
    facts = READERS[kind](source, config)
    facts[SOFT] = target.config.num_layers if target else facts[SOFT] or _soft(carried)
    tensors = dict(_named(source, kind, form))
    return Draft(kind, name, facts, layer, tensors, carried, str(source.root), warnings)


def _kind_of(source: Source) -> str:
    for kind in READERS:
        suggest = methods()[kind].suggest
        if suggest and suggest(source):
            return kind
    raise source.reader.refuse(f"no draft that can be converted; kinds: {', '.join(READERS)}")


def _claimed(source: Source) -> ModelConfig:
    """Return the target that a draft's own config speaks of; of its layers only what it names is known."""
    section = source.reader.section("transformer_layer_config") or source.reader
    flat = ConfigReader({**section.values, "architectures": ["LlamaForCausalLM"]}, section.where)
    config = read_decoder(flat, "auto")
    hidden = source.reader.positive("target_hidden_size", config.hidden_size)
    layers = source.reader.positive("num_target_layers", MOST_LAYERS, MOST_LAYERS)
    return replace(config, hidden_size=hidden, num_layers=layers)


def _check(source: Source, kind: str, config: ModelConfig, target: SourceModel | None) -> Iterator[Diagnostic]:
    """Yield warnings; raises CheckpointError for errors, as `trtspec check` reports them."""
    method = find_method(kind)
    if method.read_head is None:
        raise ValueError(f"{kind} drafts with no head")
    head = method.read_head(source, HeadTarget(config, target.rules if target else (), 1), method.options())
    match(head.rules, head.skips, source)
    errors = [each for each in head.diagnostics if each.severity == "error"]
    if errors:
        raise CheckpointError("; ".join(each.message for each in errors), where=str(source.root), hint=errors[0].hint)
    yield from head.diagnostics


def _dialect_of(source: Source, kind: str) -> str:
    """Return the dialect whose marks are there, the most of them in number where several are."""
    marks = {name: [_has(source, mark) for mark in form.marks] for name, form in forms_of(kind).items()}
    counted = {name: (sum(found) / len(found), sum(found)) for name, found in marks.items()}
    return max(counted, key=lambda name: counted[name])


def _has(source: Source, mark: str) -> bool:
    outer, _, inner = mark.partition(".")
    section = source.config.get(outer)
    if inner and isinstance(section, dict):
        return inner in section
    return section is not None or any(name.startswith(mark) for name in source.tensors)


def _soft(carried: dict[str, dict[str, Any]]) -> int | None:
    number = carried.get("facts", {}).get(SOFT)
    return number if type(number) is int else None


def _sort_keys(
    source: Source, kind: str, name: str, form: Form, drop: frozenset[str]
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """Return the layers' config, and the carried keys by dialect; raises CheckpointError for keys nobody knows."""
    known = {path for each in forms_of(kind).values() for path in each.paths}
    kept = source.reader.section(CARRIED)
    carried = {key: dict(value) for key, value in (kept.values if kept else {}).items() if isinstance(value, dict)}
    flat = {key: value for key, value in source.config.items() if key not in drop}
    section = source.reader.section(form.section) if form.section else None
    layer = {key: value for key, value in (section.values if section else flat).items() if key in LAYER_KEYS}
    own = {key: flat[key] for key in flat if key in form.carried or (section and key in LAYER_KEYS)}
    if own:
        carried[name] = {**carried.get(name, {}), **own}
    outer = {path[0] for path in known} | {"architectures", CARRIED, form.section} | LAYER_KEYS | _ALIASES
    odd = [key for key in flat if key not in outer and flat[key] is not None]
    odd += [
        f"{form.section}.{key}"
        for key in (section.values if section else {})
        if key not in LAYER_KEYS | {"architectures"}
    ]
    odd += list(_odd_inner(source, known, drop))
    if odd := [key for key in odd if key not in drop]:
        hint = f"if nothing computes with it, leave it out: --drop {odd[0]}"
        raise source.reader.refuse(f"has keys that no dialect of {kind} is known to have: {', '.join(odd[:8])}", hint)
    _check_fixed(source, form)
    return layer, carried


# Other names of facts that the methods' readers know.
_ALIASES = frozenset({"pard_token", "ptd_token_id", "mask_token_id", "parallel_drafting", "eagle_aux_hidden_state_layer_ids",
                      "norm_before_residual", "norm_before_fc", "norm_output", "fc_norm", "target_hidden_size",
                      "draft_vocab_size", "num_target_layers", "sample_from_anchor"})  # fmt: skip


def _odd_inner(source: Source, known: set[tuple[str, ...]], drop: frozenset[str]) -> Iterator[str]:
    """Yield the keys of eagle_config and its like that are not known, with the section before them."""
    inner = {path[-1] for path in known} | _ALIASES
    for outer in {path[0] for path in known if len(path) > 1} - drop:
        section = source.reader.section(outer)
        for key, value in (section.values if section else {}).items():
            if key not in inner and value is not None and not (outer, key) in known:
                yield f"{outer}.{key}"


def _check_fixed(source: Source, form: Form) -> None:
    """Raise CheckpointError where a key has another value than the one that is understood."""
    for path, value in form.fixed.items():
        found: Any = source.config
        for key in path:
            found = found.get(key) if isinstance(found, dict) else None
        if found is not None and found != value:
            raise source.reader.refuse(f"{'.'.join(path)} is {found!r}; drafts with {value!r} are understood")


def _named(source: Source, kind: str, form: Form) -> Iterator[tuple[str, TensorInfo]]:
    """Yield its tensors by the names that most dialects share, without those of the target kept for training."""
    eagle = find_names(source) if kind in ("eagle3", "p_eagle") else None
    prefix = eagle.prefix if eagle else ""
    back = {f"{eagle.layer}.": "layers.0."} if eagle else {own: shared for shared, own in form.renames.items() if own}
    for name, tensor in sorted(source.tensors.items()):
        name = name.removeprefix(prefix)
        if name.startswith("verifier_") or name.endswith("rotary_emb.inv_freq"):
            continue
        if not eagle and "" in form.renames.values() and name.startswith(_BARE):
            name = f"markov_head.{name}"
        start = next((start for start in back if name.startswith(start)), "")
        yield back.get(start, "") + name.removeprefix(start), tensor


_BARE = ("markov_w1.", "markov_w2.", "gate_proj.", "joint_proj.")
