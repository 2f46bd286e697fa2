# SPDX-License-Identifier: Apache-2.0
"""Reads a draft in any file format (dialect): its kind, properties (facts), tensors and warnings.

Facts are the contents of config.json in a form independent of the dialect, extracted by the methods' config readers.
Target layers whose hidden states a draft reads are numbered by their inputs: 0 is the embedding, and the number of
layers is the output of the last layer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trtspec.checkpoints.model_config import ConfigReader, ModelConfig
from trtspec.checkpoints.rules import find_parts, match
from trtspec.checkpoints.safetensors import TensorInfo, read_tensor
from trtspec.checkpoints.source import Source
from trtspec.checkpoints.source_model import SourceModel
from trtspec.checkpoints.trtllm import EMBEDDING as TARGET_EMBEDDING
from trtspec.checkpoints.trtllm import LM_HEAD as TARGET_LM_HEAD
from trtspec.checkpoints.trtllm import MOST_LAYERS
from trtspec.core.diagnostics import Diagnostic, quote_value
from trtspec.core.errors import CheckpointError
from trtspec.families.decoder import HEAD_DEFAULTS, read_decoder
from trtspec.methods.base import HeadTarget, find_method, methods
from trtspec.methods.dflash import Keys, common_name, read_block_net
from trtspec.methods.draft_formats.base import EMBEDDING, LM_HEAD, MEDUSA, DraftSchema, schemas_for
from trtspec.methods.draft_head import count_layers, mask_token
from trtspec.methods.eagle3 import default_aux_layers, find_names, named_aux_layers, read_head_config
from trtspec.methods.medusa import LISTED, OF_THE_BASE, SHARED, Heads, find_heads

Facts = dict[str, Any]
Carried = dict[str, dict[str, Any]]

# A fact about the target that no dialect computes with; it is written only for dialects that have a key for it.
SOFT = "num_target_layers"

CARRIED = "trtspec_carried"  # by dialect: keys that other dialects lack and that do not affect computation
LEFT_OUT = "left_out"  # the key for names of target tensors that a conversion omitted
# Keys of transformers' config classes for the layers, which all dialects use unchanged.
LAYER_KEYS = frozenset({
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "hidden_act", "rms_norm_eps", "vocab_size", "max_position_embeddings", "rope_theta", "rope_scaling",
    "rope_parameters", "partial_rotary_factor", "attention_bias", "attention_dropout", "mlp_bias",
    "tie_word_embeddings", "initializer_range", "use_cache", "bos_token_id", "eos_token_id", "pad_token_id",
    "torch_dtype", "dtype", "model_type", "layer_types", "sliding_window", "use_sliding_window", "max_window_layers",
    "pretraining_tp", "transformers_version", "_name_or_path",
})  # fmt: skip
# Further keys that the readers of the methods accept for a fact.
_ALIASES = frozenset({
    "mask_token_id", "pard_token", "ptd_token_id", "eagle_aux_hidden_state_layer_ids", "norm_before_residual",
    "norm_before_fc", "norm_output", "fc_norm", "return_hidden_post_norm", "target_hidden_size", "draft_vocab_size",
    "num_target_layers", "sample_from_anchor", "block_size", "target_layer_ids", "markov_rank", "markov_head_type",
    "confidence_head_with_markov",
})  # fmt: skip


def _eagle3(source: Source, target: ModelConfig) -> Facts:
    """Return the properties (facts) of an EAGLE-3 head; `aux_layers` is None for EAGLE-3's default layers."""
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
        """Return the properties (facts) of a block net; `sliding_causal` is None without sliding-window layers."""
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
    """Return the default of a draft property (fact), as in the published method, for layers with the config `layer`."""
    sizes = {"draft_vocab_size": "vocab_size", "target_hidden_size": "hidden_size"}
    return layer.get(sizes[fact]) if fact in sizes else None


def get_path(config: Mapping[str, Any], path: str) -> Any:
    """Return the value at a path of keys separated by dots, or None if it is missing."""
    found: Any = config
    for key in path.split("."):
        found = found.get(key) if isinstance(found, dict) else None
    return found


def set_path(config: dict[str, Any], path: str, value: Any) -> None:
    *sections, last = path.split(".")
    for key in sections:
        config = config.setdefault(key, {})
    config[last] = value


def layer_keys(source: Source, schema: DraftSchema) -> dict[str, Any]:
    """Return the config of a draft's layers; empty for Medusa heads."""
    if schema.names:
        return {}
    section = source.reader.section(schema.section) if schema.section else source.reader
    return {key: value for key, value in (section.values if section else {}).items() if key in LAYER_KEYS}


def carried_keys(source: Source, name: str, schema: DraftSchema, drop: frozenset[str]) -> Carried:
    """Return the keys that do not affect computation, by file format, including those of earlier conversions."""
    kept = source.reader.section(CARRIED)
    carried = {key: dict(value) for key, value in (kept.values if kept else {}).items() if isinstance(value, dict)}
    paths = {**schema.carried, **(dict.fromkeys(LAYER_KEYS) if schema.section else {})}
    found = {key: get_path(source.config, key) for key in paths if key not in drop}
    if found := {key: value for key, value in found.items() if value is not None}:
        carried[name] = {**carried.get(name, {}), **found}
    return carried


def check_keys(source: Source, kind: str, schema: DraftSchema, drop: frozenset[str]) -> None:
    """Raise CheckpointError for a key that no file format has, or for an unsupported value of a fixed key."""
    if unsupported := [key for key in _unsupported_keys(source, kind, schema) if key not in drop]:
        hint = f"if it does not affect computation, ignore it with --drop {unsupported[0]}"
        message = f"has keys unknown to all dialects of {kind}: {', '.join(unsupported[:8])}"
        raise source.reader.refuse(message, hint)
    for path, value in schema.fixed.items():
        found = get_path(source.config, path)
        if found is not None and found != value:
            raise source.reader.refuse_value(f"{path} is {quote_value(found)}, expected {quote_value(value)}")


def _unsupported_keys(source: Source, kind: str, schema: DraftSchema) -> Iterator[str]:
    paths = {path for each in schemas_for(kind).values() for path in each.paths}
    # vLLM would interpret a layer key such as num_hidden_layers as a key of the Medusa heads
    of_layers = LAYER_KEYS if schema.names is None or find_heads(source).names.prefix else ()
    outer = {path.partition(".")[0] for path in paths}
    yield from _extra_keys(source.config, "", {*outer, "architectures", CARRIED, schema.section, *of_layers, *_ALIASES})
    if schema.section:
        yield from _extra_keys(source.config.get(schema.section), f"{schema.section}.", {*LAYER_KEYS, "architectures"})
    for section in {path.partition(".")[0] for path in paths if "." in path}:
        inner = {path.partition(".")[2] for path in paths if path.startswith(f"{section}.")}
        yield from _extra_keys(source.config.get(section), f"{section}.", inner | _ALIASES)


def _extra_keys(section: Any, prefix: str, known: Collection[str | None]) -> Iterator[str]:
    if isinstance(section, dict):
        yield from (f"{prefix}{key}" for key, value in section.items() if value is not None and key not in known)


# The embedding and the LM head of a target, by the names of a draft's copies.
TARGET_NAMES = {EMBEDDING: TARGET_EMBEDDING, LM_HEAD: TARGET_LM_HEAD}
# Tensors that are used only in training, or can be computed.
_LEFT_OUT = re.compile(r"verifier_.*|.*rotary_emb\.inv_freq")
# Tensors without a conversion rule that engines can read from the source.
_OPTIONAL = re.compile(
    r"(.*\.)?t2d|verifier_.*|.*rotary_emb\.inv_freq"
    r"|confidence_(head\.)?proj\.(weight|bias)|(markov_head\.)?(gate|joint)_proj\.(weight|bias)"
)
# Placeholders for keys that `read_decoder` requires; the config of Medusa heads does not describe the target's layers.
_NO_LAYERS = {
    "architectures": ["LlamaForCausalLM"], "num_attention_heads": 1, "head_dim": 2, "num_hidden_layers": 1,
    "intermediate_size": 1, "max_position_embeddings": 1, "rms_norm_eps": 1e-6,
}  # fmt: skip
_VLLMS_HEADS = 5  # vLLM's default


def dialect_names(facts: Facts, schema: DraftSchema) -> Callable[[str], str]:
    """Return a function from a tensor's common name to its name in a file format (dialect)."""
    if schema.names is None:
        return lambda name: _replace_start(name, schema.renames)
    heads = Heads(facts["num_heads"], facts["num_layers"], facts["hidden_size"], facts["vocab_size"], schema.names)
    named = {rule.name: rule.sources[0].name for rule in heads.rules()}
    return lambda name: named.get(name, name)


def _head_tensors(source: Source) -> Iterator[tuple[str, TensorInfo]]:
    heads = find_heads(source)
    for rule in heads.rules():
        if stored := rule.sources[0].name:
            yield LM_HEAD if stored == heads.shared else rule.name, source.tensors[stored]


def _renamed(source: Source) -> Iterator[tuple[str, TensorInfo]]:
    for stored, tensor in source.tensors.items():
        name = _replace_start(stored.removeprefix("eagle_module."), {"midlayer.": "layers.0."})
        if not _LEFT_OUT.fullmatch(name):
            yield common_name(name), tensor


def _replace_start(name: str, starts: Mapping[str, str]) -> str:
    start = next((start for start in starts if name.startswith(start)), None)
    return name if start is None else f"{starts[start]}{name.removeprefix(start)}"


def target_tensor(name: str, target: SourceModel) -> TensorInfo:
    """Return the target's tensor that corresponds to a draft's embedding or LM head."""
    rules = [rule for rule in target.rules if rule.target == TARGET_NAMES[name]]
    ((tensor,),) = find_parts(rules, target.source).values()
    return tensor


def have_equal_bits(one: TensorInfo, other: TensorInfo) -> bool:
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    return all(left == right for left, right in zip(read_tensor(one), read_tensor(other), strict=True))


def described_target(source: Source) -> ModelConfig:
    """Return a placeholder target with the sizes of Medusa heads; raise CheckpointError without a vocabulary size."""
    heads = find_heads(source)
    if not heads.vocab_size:
        raise source.reader.refuse("vocab_size and the heads' vocabulary matrices are missing", "give --target")
    sizes = {"hidden_size": heads.hidden_size, "vocab_size": heads.vocab_size}
    return read_decoder(ConfigReader(_NO_LAYERS | sizes, source.reader.where), "bfloat16")


def check_heads(source: Source, target: SourceModel | None) -> Iterator[Diagnostic]:
    """Yield warnings for Medusa heads that equal the target's LM head or exceed the number in config.json.

    Raise CheckpointError if config.json has more heads than there are tensors for.
    """
    heads = find_heads(source)
    configured = _configured_heads(source, heads)
    if configured > heads.num_heads:
        raise source.reader.refuse_value(f"has {configured} heads, but there are tensors for {heads.num_heads}")
    if configured < heads.num_heads:
        message = f"config.json has {configured} heads, but there are tensors for {heads.num_heads}"
        yield Diagnostic("model", "heads", message, f"all {heads.num_heads} are written", "warning")
    untrained = [head for head in range(heads.num_heads) if _adds_nothing(source, heads, head)]
    if idle := [head for head in untrained if _has_target_lm_head(source, heads, head, target)]:
        message = f"head {', '.join(map(str, idle))} equals the target's LM head: the blocks are zero"
        hint = "head 0 must predict the token after the next; remove copies of the target's LM head, or train them"
        yield Diagnostic("model", "idle-heads", message, hint, "warning")


def _configured_heads(source: Source, heads: Heads) -> int:
    reader, section = source.reader, source.reader.section("medusa")
    found = section.get("num_medusa_heads", int, heads.num_heads) if section else heads.num_heads
    found = reader.get("num_heads", int, _VLLMS_HEADS) if heads.names is LISTED else found
    return reader.get("medusa_num_heads", int, found)


def _adds_nothing(source: Source, heads: Heads, head: int) -> bool:
    """Return whether all residual blocks of a head are zero."""
    rules = [rule(head, layer) for layer in range(heads.num_layers) for rule in (heads.weight, heads.bias)]
    blocks = [source.tensors[rule.sources[0].name] for rule in rules if rule.sources[0].name]
    return all(chunk.count(0) == len(chunk) for tensor in blocks for chunk in read_tensor(tensor))


def _has_target_lm_head(source: Source, heads: Heads, head: int, target: SourceModel | None) -> bool:
    """Return whether a head's vocabulary matrix is the target's LM head; false without a target."""
    matrix = source.tensors.get(heads.lm_head(head).sources[0].name)
    return heads.shared == "" or bool(target and matrix and have_equal_bits(matrix, target_tensor(LM_HEAD, target)))


@dataclass(frozen=True)
class SourceDraft:
    """A draft of one `kind` (a method's name), read from a file in one `dialect`.

    `layer` is the config of its layers. `tensors` are keyed by the names that most dialects share. `carried` are keys
    that do not affect computation, by dialect. `target_tensors` are tensors of the target in the same files, by the
    target's names. `warnings` come from the methods' config readers.
    """

    kind: str
    dialect: str
    facts: Facts
    layer: dict[str, Any]
    tensors: dict[str, TensorInfo]
    carried: Carried
    where: str
    target_tensors: dict[str, TensorInfo]
    warnings: tuple[Diagnostic, ...]

    @property
    def left_out(self) -> tuple[str, ...]:
        """Return the names of tensors equal to the target's that an earlier conversion omitted."""
        names = self.carried.get("facts", {}).get(LEFT_OUT)
        return tuple(name for name in TARGET_NAMES if isinstance(names, list) and name in names)

    def layers_read(self, num_layers: int) -> tuple[int, ...]:
        """Return the target layers whose hidden states the draft reads, numbered by their inputs."""
        named: tuple[int, ...] | None = self.facts.get("hidden_layers") or self.facts.get("aux_layers")
        return named or default_aux_layers(num_layers)

    def refuse(self, message: str, hint: str | None = None) -> CheckpointError:
        return CheckpointError(message, where=self.where, hint=hint)


def read_draft(source: Source, target: SourceModel | None = None, drop: frozenset[str] = frozenset()) -> SourceDraft:
    """Read a draft in any file format. Without a target, it is checked against the sizes in its own config.

    `drop` are keys of config.json to ignore. Raise CheckpointError if the source is not a draft, is quantized or
    inconsistent, does not fit the target, or has unknown keys.
    """
    kind = _detect_kind(source)
    if is_quantized(source):
        raise source.reader.refuse(
            "its weights are quantized; conversion requires unquantized weights", "use the draft before quantization"
        )
    config = target.config if target else described_target(source) if kind == MEDUSA else _claimed(source)
    found, skipped = _check(source, kind, config, target)
    warnings = (*found, *(check_heads(source, target) if kind == MEDUSA else ()))
    name = _detect_dialect(source, kind)
    schema = schemas_for(kind)[name]
    check_keys(source, kind, schema, drop)
    carried = carried_keys(source, name, schema, drop)
    facts = READERS[kind](source, config)
    known = carried.get("facts", {}).get(SOFT)
    if target:
        facts[SOFT] = target.config.num_layers
    elif not facts[SOFT]:
        facts[SOFT] = known if type(known) is int else None
    # keyed by the names that most dialects share, for Medusa heads by TensorRT-LLM's names
    tensors = dict(_head_tensors(source) if schema.names else _renamed(source))
    target_tensors = {name: source.tensors[name] for name, why in skipped.items() if why == OF_THE_BASE.reason}
    layer = layer_keys(source, schema)
    if layer.get("num_hidden_layers") and (layers := count_layers(tensors)):
        layer["num_hidden_layers"] = layers  # some published heads have the target's number of layers here
    return SourceDraft(kind, name, facts, layer, tensors, carried, str(source.root), target_tensors, warnings)


def is_quantized(source: Source) -> bool:
    """Return whether a checkpoint's config declares quantized weights."""
    return bool(source.quantization or source.config.get("quantization_config"))


def _detect_kind(source: Source) -> str:
    for kind in READERS:
        suggest = methods()[kind].suggest
        if suggest and suggest(source):
            return kind
    raise source.reader.refuse(f"not a convertible draft; supported kinds: {', '.join(READERS)}", "name a draft head")


def _claimed(source: Source) -> ModelConfig:
    """Return a target config with the sizes that the draft's config gives for its target."""
    section = source.reader.section("transformer_layer_config") or source.reader
    flat = section.with_defaults(HEAD_DEFAULTS).replacing(architectures=["LlamaForCausalLM"])
    config = read_decoder(flat, "auto")
    hidden = source.reader.positive("target_hidden_size", config.hidden_size)
    layers = source.reader.positive("num_target_layers", MOST_LAYERS, MOST_LAYERS)
    return replace(config, hidden_size=hidden, num_layers=layers)


def _check(
    source: Source, kind: str, config: ModelConfig, target: SourceModel | None
) -> tuple[Sequence[Diagnostic], dict[str, str]]:
    """Check a draft like `trtspec check` and return (warnings, {skipped tensor: reason}).

    Raise CheckpointError for errors and for tensors that no dialect has.
    """
    method = find_method(kind)
    suggestion = method.suggest(source) if method.suggest else None
    if method.read_head is None or suggestion is None:
        raise ValueError(f"{kind} does not use a draft head")
    options = method.options(**suggestion.options)
    head = method.read_head(source, HeadTarget(config, target.rules if target else (), 1), options)
    skipped = match(head.rules, head.skips, source).skipped
    unknown = [name for name, why in skipped.items() if not (_OPTIONAL.fullmatch(name) or why == OF_THE_BASE.reason)]
    if unknown:
        message = f"has tensors unknown to all dialects of {kind}: {', '.join(unknown[:8])}"
        hint = "remove them from the file if they are unused"
        raise CheckpointError(message, where=str(source.root), hint=hint)
    errors = [each for each in head.diagnostics if each.severity == "error" and each.code != SHARED]
    if errors:
        raise CheckpointError("; ".join(each.message for each in errors), where=str(source.root), hint=errors[0].hint)
    return [each for each in head.diagnostics if each.code != SHARED], skipped


def _detect_dialect(source: Source, kind: str) -> str:
    """Return the file format with the largest share of its marks present; ties go to the larger number of marks."""
    marks = {name: [_has(source, mark) for mark in schema.marks] for name, schema in schemas_for(kind).items()}
    counted = {name: (sum(found) / len(found), sum(found)) for name, found in marks.items()}
    return max(counted, key=lambda name: counted[name])


def _has(source: Source, mark: str) -> bool:
    outer, _, inner = mark.partition(".")
    section = source.config.get(outer)
    if inner and isinstance(section, dict):
        return inner in section
    return section is not None or any(name.startswith(mark) for name in source.tensors)
