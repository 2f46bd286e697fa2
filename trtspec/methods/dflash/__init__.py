# SPDX-License-Identifier: Apache-2.0
"""DFlash: a small net predicts a block of tokens after the text in one pass, using hidden states of the target.

Chen et al. 2026, arXiv:2602.06036. This module also describes and checks the block nets of DSpark. The layers are those
of Qwen3. `fc` combines hidden states of several target layers, and attention reads the result as context before the
block. A net without an embedding or LM head uses the target's. Nets are read from these formats:

    z-lab, DeepSpec   keys at the top level or in dflash_config, which has priority; target_layer_ids are the layers
                      whose output is read, from 0
                      (vllm-project/vllm:vllm/model_executor/models/qwen3_dflash.py@v0.32.0)
    ModelOpt          like z-lab, with projector_type and use_confidence_head
                      (NVIDIA/Model-Optimizer:modelopt/torch/export/plugins/hf_spec_export.py@0.47.0)
    speculators       speculators_model_type; aux_hidden_state_layer_ids count from 1
                      (vllm-project/speculators:src/speculators/models/dflash/config.py@v0.9.0)

TensorRT engines do not support block nets, so their format inside a target's checkpoint is specific to trtspec. In
config.json, the section "dflash" or "dspark" has the keys of the net, and "dflash_net_config" or "dspark_net_config"
describes its layers like TensorRT-LLM does. Tensor names begin with the method's name. Layers use TensorRT-LLM's module
names; other tensors use the names that most formats share.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeVar

from trtspec.checkpoints.model_config import ConfigReader, ModelConfig
from trtspec.checkpoints.rules import Rule, Skip, SourceTensor, Split, Stage
from trtspec.checkpoints.source import Source
from trtspec.checkpoints.trtllm import MOST_LAYERS, TrtllmCheckpoint, read_config
from trtspec.core.diagnostics import Diagnostic, quote_value
from trtspec.families.decoder import read_decoder
from trtspec.methods.base import DraftHead, HeadTarget, Method, Options, Suggestion, VocabularyNames
from trtspec.methods.draft_head import (
    NOT_THIS_KIND,
    check_ids,
    check_layer,
    check_layers,
    check_mask,
    check_shift,
    check_sizes,
    count_layers,
    layer_rules,
    resolve_num_layers,
    stored_section,
)

MOST_BLOCK, MOST_RANK = 256, 1 << 16
# Defaults of transformers' Qwen3Config, 5.23.
NET_DEFAULTS = {"max_position_embeddings": 32_768, "rms_norm_eps": 1e-6}
# Supported values of keys that vllm-project/vllm:vllm/model_executor/models/qwen3_dflash.py@v0.32.0 reads.
_USUAL = {
    "use_swa": False, "attention_sink_bias": False, "add_swa_attention_sink_bias": False, "attention_value_scale": 1.0,
    "is_neox_style": True, "logit_scale": 1.0, "markov_head_type": "vanilla",
}  # fmt: skip
MARKOV, CONFIDENCE = "markov_head.", "confidence_head.proj."
# ModelOpt stores the tensors of both heads at the top level.
_TOP_LEVEL = re.compile(r"^(?:(?P<markov>markov_w[12]|gate_proj|joint_proj)\.|confidence_proj\.)")
_NUMBERS = ("block_size", "drafts", "mask_token", "draft_vocab_size", "markov_rank", "confidence_width")

T = TypeVar("T")


@dataclass(frozen=True)
class BlockNet:
    """The configuration of a block net for a target with `target_hidden_size` and `layer.vocab_size` tokens.

    All layers have the config `layer`. A block has `block_size` positions: the anchor, which is the text's last token,
    and mask tokens. A step drafts at most `drafts` tokens: `block_size`, or one less if the anchor's position drafts no
    token. The net reads the outputs of `target_layers`, counted from 0. `num_target_layers` is the target's number of
    layers, 0 if unknown. If `draft_vocab_size` is smaller than the target's vocabulary, d2t maps draft ids to target
    ids. `markov_rank` and `markov_head` are rank and kind of the Markov head (0 and "" without one); `confidence_width`
    is the input width of the confidence head (0 without one). With `is_causal`, positions of a block do not attend to
    later ones.
    """

    dialect: str
    layer: ModelConfig
    block_size: int
    drafts: int
    mask_token: int
    target_layers: tuple[int, ...]
    num_target_layers: int
    target_hidden_size: int
    draft_vocab_size: int
    markov_rank: int = 0
    markov_head: str = ""
    confidence_width: int = 0
    is_causal: bool = False

    @property
    def drafts_at_anchor(self) -> bool:
        """Return whether a step also drafts a token at the anchor's position (the text's last token)."""
        return self.drafts == self.block_size


@dataclass(frozen=True)
class Variant:
    """A kind of net that computes more than DFlash, although most of its tensors and keys are DFlash's.

    `net` is its name in a sentence, `more` is what it computes in addition, `keys` match keys of its config.json, and
    `engines` are those that run it.
    """

    name: str
    net: str
    more: str
    keys: re.Pattern[str]
    engines: str


# vllm-project/speculators: src/speculators/models/{dflash2,xpress}/config.py@v0.9.0, and the vLLM class of XPress
VARIANTS = (
    Variant(
        "DFlash2",
        "a DFlash2 net",
        "convolutions and selector",
        re.compile(r"conv_kernel_size|conv_group_size|selector_rank|selector_top_k"),
        "vLLM from 0.28, SGLang from 0.5.19 and Edge-LLM 0.11",
    ),
    Variant("XPress", "an XPress net", "refiner", re.compile(r"xpress_\w+|num_jacobi_passes"), "vLLM from 0.33"),
)


class Keys:
    """Reader for the config.json of a block net in any file format."""

    def __init__(self, source: Source) -> None:
        self.reader = source.reader
        self.speculators = self.reader.get("speculators_model_type", str, "")
        empty = ConfigReader({}, self.reader.where)
        self.inner = empty if self.speculators else self.reader.section("dflash_config") or empty
        layer = self.reader.section("transformer_layer_config") if self.speculators else None
        self.layer = layer or self.reader

    @property
    def dialect(self) -> str:
        if self.speculators:
            return "speculators"
        return "ModelOpt" if "projector_type" in self.inner.values else "z-lab or DeepSpec"

    def matching(self, pattern: re.Pattern[str]) -> list[str]:
        """Return the keys with a value that match a pattern, in the file's order."""
        pairs = [pair for section in (self.inner, self.reader) for pair in section.values.items()]
        return list(dict.fromkeys(key for key, value in pairs if value is not None and pattern.fullmatch(key)))

    def has(self, key: str) -> bool:
        return any(section.values.get(key) is not None for section in (self.inner, self.reader))

    def get(self, key: str, kind: type[T], default: T | None = None) -> T:
        section = self.inner if self.inner.values.get(key) is not None else self.reader
        return section.get(key, kind, default)

    def number(self, key: str, default: int | None = None, most: int = 1 << 31) -> int:
        section = self.inner if self.inner.values.get(key) is not None else self.reader
        return section.positive(key, default, most)

    def sequential(self) -> bool:
        """Return whether the net has a Markov head."""
        if self.speculators:
            return self.speculators == "dspark"
        return self.get("projector_type", str, "") == "dspark" or self.has("markov_rank")

    def configured_tokens(self) -> int:
        """Return the number of draft tokens per step in speculators_config, or 0 if it is missing."""
        section = self.reader.section("speculators_config")
        proposals = section.get("proposal_methods", list, []) if section else []
        first = proposals[0] if proposals and isinstance(proposals[0], dict) else {}
        reader = ConfigReader(first, self.reader.where)
        return reader.positive("speculative_tokens") if "speculative_tokens" in first else 0


def detect_kind(source: Source) -> str:
    """Return "dflash" or "dspark" for a block net, "" for any other checkpoint."""
    keys = Keys(source)
    if keys.speculators:
        is_net = keys.speculators in ("dflash", "dspark", *(each.name.lower() for each in VARIANTS))
    else:
        is_net = keys.has("block_size") and keys.has("target_layer_ids")
    return ("dspark" if keys.sequential() else "dflash") if is_net else ""


def find_variant(source: Source) -> Variant | None:
    """Return the variant of DFlash that a net is, or None for DFlash itself.

    A class can be specific to a model (MiniMaxDFlash2DraftModel), so that the variant in its name or the keys suffice.
    """
    keys = Keys(source)
    return next((each for each in VARIANTS if _is_named(source, keys, each) or keys.matching(each.keys)), None)


def _is_named(source: Source, keys: Keys, variant: Variant) -> bool:
    names = source.config.get("architectures")
    classes = names if isinstance(names, list) else []
    return keys.speculators == variant.name.lower() or any(variant.name in str(name) for name in classes)


def check_class(source: Source) -> Iterator[Diagnostic]:
    """Yield an error for a net of a variant whose class is another one, which would load a part of the net."""
    found = find_variant(source)
    if found and not _is_named(source, Keys(source), found):
        marks = ", ".join(Keys(source).matching(found.keys))
        message = f"the drafter is {found.net} ({marks}), but its class is not"
        hint = f"set the class that its authors publish in architectures of its config.json; {found.engines} run it"
        yield Diagnostic("speculation.draft.model", "variant", message, hint)


def block_size(source: Source) -> int | None:
    """Return the block size in a net's config.json, or None if it is missing or invalid."""
    sections = (source.config, source.config.get("dflash_config"), source.config.get("dspark_config"))
    found = [each.get("block_size") for each in sections if isinstance(each, dict)]
    return next((each for each in found if isinstance(each, int) and each > 0), None)


def special_keys(source: Source) -> list[str]:
    """Return the keys of config.json that select a computation different from DFlash and DSpark as published."""
    keys = Keys(source)
    sections = (keys.inner, keys.reader, keys.layer)
    found = [
        key for key, usual in _USUAL.items() if any(each.values.get(key) not in (None, usual) for each in sections)
    ]
    windowed = any("sliding_attention" in (each.values.get("layer_types") or []) for each in sections)
    found += ["layer_types"] if windowed else []
    if variant := find_variant(source):
        named = "speculators_model_type" if keys.speculators == variant.name.lower() else "architectures"
        found += keys.matching(variant.keys) or [named]
    return found


def read_block_net(source: Source, dtype: str, kind: str) -> BlockNet:
    """Return the configuration of a net of this kind; raise CheckpointError for another kind or an invalid key."""
    keys, found = Keys(source), detect_kind(source)
    if found != kind:
        hint = f"use method: {found}" if found else None
        raise keys.reader.refuse(f"describes {'a ' + found if found else 'no'} net, expected a {kind} net", hint)
    if (projector := keys.get("projector_type", str, kind)) != kind:
        raise keys.reader.refuse(f"projector_type is {projector!r}, which is not supported", NOT_THIS_KIND)
    layer = _read_layers(keys, source, dtype)
    block = keys.number("block_size", most=MOST_BLOCK)
    rank = keys.number("markov_rank", most=MOST_RANK) if kind == "dspark" else 0
    with_markov = keys.get("confidence_head_with_markov", bool, keys.dialect != "z-lab or DeepSpec")
    has_confidence = rank and any("confidence" in name for name in source.tensors)
    return BlockNet(
        dialect=keys.dialect,
        layer=layer,
        block_size=block,
        # the trainers' default if config.json lacks the key
        drafts=block if keys.get("sample_from_anchor", bool, keys.sequential()) else block - 1,
        mask_token=keys.get("mask_token_id", int),
        target_layers=_read_target_layers(keys),
        num_target_layers=keys.number("num_target_layers") if keys.has("num_target_layers") else 0,
        target_hidden_size=keys.number("target_hidden_size", layer.hidden_size),
        draft_vocab_size=keys.number("draft_vocab_size", layer.vocab_size, most=layer.vocab_size),
        markov_rank=rank,
        markov_head=keys.get("markov_head_type", str, "vanilla") if rank else "",
        confidence_width=(layer.hidden_size + rank * with_markov) if has_confidence else 0,
        is_causal=keys.reader.get("is_causal", bool, keys.get("causal", bool, False)),
    )


def _read_layers(keys: Keys, source: Source, dtype: str) -> ModelConfig:
    configured = keys.layer.positive("num_hidden_layers", most=MOST_LAYERS)
    target_layers = keys.number("num_target_layers") if keys.has("num_target_layers") else 0
    layers = resolve_num_layers(configured, count_layers(source.tensors), target_layers)
    reader = keys.layer.with_defaults(NET_DEFAULTS).replacing(
        architectures=["Qwen3ForCausalLM"], num_hidden_layers=layers
    )
    attn_bias, dense_bias = (f"layers.0.self_attn.{name}_proj.bias" in source.tensors for name in "qo")
    return read_decoder(reader, dtype, attn_bias=attn_bias, dense_bias=dense_bias, qk_norm=True, tied_embeddings=False)


def _read_target_layers(keys: Keys) -> tuple[int, ...]:
    key, first = ("aux_hidden_state_layer_ids", 1) if keys.speculators else ("target_layer_ids", 0)
    named = keys.get(key, list)
    if not 0 < len(named) <= MOST_LAYERS or not all(type(number) is int for number in named):
        raise keys.reader.refuse_value(f"{key} is {quote_value(named)}, expected numbers of layers")
    return tuple(number - first for number in named)


def layer_config(kind: str) -> str:
    return f"{kind}_net_config"


def render(net: BlockNet) -> dict[str, Any]:
    """Return the net's section for the target's config.json; the layers' config is a separate section."""
    numbers = {key: getattr(net, key) for key in _NUMBERS}
    return {**numbers, "target_layers": list(net.target_layers), "is_causal": net.is_causal}


def stored_net(checkpoint: TrtllmCheckpoint, kind: str) -> BlockNet:
    """Return the configuration of the net in a target's checkpoint; raise CheckpointError if this kind is absent."""
    target = checkpoint.config
    section, layer = (stored_section(checkpoint, key, f"a {kind} net", kind) for key in (kind, layer_config(kind)))
    layers = tuple(section.get("target_layers", list))
    if not layers or not all(type(each) is int and 0 <= each < target.num_layers for each in layers):
        raise section.refuse_value(
            f"target_layers are {list(layers)}, expected numbers from 0 to {target.num_layers - 1}"
        )
    numbers: dict[str, Any] = {key: section.get(key, int) for key in _NUMBERS}
    return BlockNet(
        dialect="",
        layer=read_config(layer, checkpoint.ranks[-1].keys(), f"{kind}.layers.0."),
        target_layers=layers,
        num_target_layers=target.num_layers,
        target_hidden_size=target.hidden_size,
        is_causal=section.get("is_causal", bool),
        **numbers,
    )


def net_rules(net: BlockNet, kind: str, names: Collection[str]) -> list[Rule]:
    """Return the conversion rules of a net's tensors: all required ones, and the optional ones that are in `names`."""
    hidden, vocab, drafted, rank = (
        net.layer.hidden_size, net.layer.vocab_size, net.draft_vocab_size, net.markov_rank
    )  # fmt: skip
    sources = {common_name(name): name for name in names}
    shapes = {
        "fc.weight": (hidden, len(net.target_layers) * net.target_hidden_size),
        "hidden_norm.weight": (hidden,),
        "norm.weight": (hidden,),
    }
    optional = {
        "embed_tokens.weight": (vocab, hidden),
        "lm_head.weight": (drafted, hidden),
        "d2t": (drafted,),
    }
    if net.confidence_width:
        optional |= {f"{CONFIDENCE}weight": (1, net.confidence_width), f"{CONFIDENCE}bias": (1,)}
    if rank:
        shapes |= {f"{MARKOV}markov_w1.weight": (vocab, rank), f"{MARKOV}markov_w2.weight": (drafted, rank)}
    shapes |= {name: shape for name, shape in optional.items() if name in sources}
    found = [_rule(kind, name, sources.get(name, name), shape) for name, shape in shapes.items()]
    for number in range(net.layer.num_layers):
        found += layer_rules(net.layer, number, f"{kind}.layers.{number}", f"layers.{number}")
    return found


def common_name(name: str) -> str:
    """Return the name that most formats use for a net's tensor."""
    return _TOP_LEVEL.sub(lambda found: f"{MARKOV}{found[0]}" if found["markov"] else CONFIDENCE, name)


def _rule(kind: str, name: str, source: str, shape: tuple[int, ...]) -> Rule:
    rule = Rule(f"{kind}.{name}", (SourceTensor(source, shape),), Stage.LAST, Split.WHOLE)
    return replace(rule, dtype="I64") if name == "d2t" else rule


SKIPS = [Skip(r"t2d|verifier_.*", "needed in training only"), Skip(".*", "left to engines that read the source")]


def block_net_method(kind: str, summary: str, why: str, options: type[Options] = Options) -> Method:
    """Return the `Method` for block nets of a kind, "dflash" or "dspark".

    `why` completes the sentence "DRAFT is ..." in the method's suggestions.
    """

    def read_head(source: Source, base: HeadTarget, options: Options) -> DraftHead:
        return describe(source, base, kind)

    def vocabulary_names(source: Source) -> VocabularyNames:
        return VocabularyNames(rows=tuple(name for name in source.tensors if name.endswith("markov_w2.weight")))

    def suggest(source: Source) -> Suggestion | None:
        if detect_kind(source) != kind:
            return None
        return Suggestion(0, f"DRAFT is {why}", draft_len=read_block_net(source, "auto", kind).drafts)

    return Method(
        summary=summary,
        drafts_with="head",
        has_confidence=True,
        draft_passes="one",
        draft_lens=range(1, 33),
        default_draft_len=7,
        options=options,
        read_head=read_head,
        suggest=suggest,
        vocabulary_names=vocabulary_names,
    )


def describe(source: Source, base: HeadTarget, kind: str) -> DraftHead:
    """Return the block net in `source` as a draft head; raise CheckpointError like `read_block_net`."""
    net = read_block_net(source, base.config.dtype, kind)
    return DraftHead(
        config={kind: render(net)},
        rules=net_rules(net, kind, source.tensors.keys()),
        skips=SKIPS,
        models={layer_config(kind): net.layer},
        excluded=(f"{kind}.*",),
        diagnostics=(
            *_check_net(net, source, base),
            *_check_defaults(Keys(source), net),
            *check_layers(Keys(source).layer.positive("num_hidden_layers", net.layer.num_layers), net.layer.num_layers),
            *_check_count(net, base.config),
            *check_ids(source, "", net.draft_vocab_size, net.layer.vocab_size),
            *check_layer(net.layer, base.config),
        ),
    )


def _check_net(net: BlockNet, source: Source, base: HeadTarget) -> Iterator[Diagnostic]:
    target, vocab = base.config, net.layer.vocab_size
    yield from check_sizes("the net is", net.target_hidden_size, vocab, target)
    yield from _check_target_layers(net, target)
    yield from check_mask(net.mask_token, vocab)
    if base.draft_len > net.drafts:
        message = f"draft_len is {base.draft_len}, but its block of {net.block_size} drafts at most {net.drafts} tokens"
        yield Diagnostic("model", "block-size", message, f"set speculation.draft_len: {net.drafts}")
    needed = {"lm_head.weight", "d2t"} if net.draft_vocab_size < vocab else set()
    if net.layer.hidden_size != target.hidden_size:
        needed |= {"embed_tokens.weight", "lm_head.weight"}
    if absent := sorted(needed - source.tensors.keys()):
        message = f"{' and '.join(absent)} are missing, and the target's do not fit"
        yield Diagnostic("model", "vocabulary", message, "export the net with them")


def _check_target_layers(net: BlockNet, target: ModelConfig) -> Iterator[Diagnostic]:
    layers, shown = net.target_layers, ", ".join(map(str, net.target_layers[:8]))
    if net.num_target_layers and net.num_target_layers != target.num_layers:
        message = f"the net is for a target of {net.num_target_layers} layers, this target has {target.num_layers}"
        yield Diagnostic("model", "aux-layers", message, "use it with the model that it was trained for")
    if not all(0 <= each < target.num_layers for each in layers) or any(a >= b for a, b in pairwise(layers)):
        message = f"it reads the outputs of layers {shown}, but the target's layers are 0..{target.num_layers - 1}"
        if net.dialect == "speculators":
            message += " (aux_hidden_state_layer_ids minus one)"
        yield Diagnostic("model", "aux-layers", message, "its config.json must list valid layers in ascending order")


def _check_count(net: BlockNet, target: ModelConfig) -> Iterator[Diagnostic]:
    """Warn if the target layers are z-lab's default layers shifted by one.

    The defaults are from z-lab/dflash:dflash/model.py@44947fb, build_target_layer_ids.
    """
    steps, last = len(net.target_layers) - 1, target.num_layers - 3
    usual = tuple(round(1 + number * (last - 1) / steps) for number in range(steps + 1)) if steps else ()
    hint = "target_layer_ids numbers outputs from 0, speculators' aux_hidden_state_layer_ids from 1"
    yield from check_shift(net.target_layers, usual, "the target layers that it reads are z-lab's defaults", hint)


def _check_defaults(keys: Keys, net: BlockNet) -> Iterator[Diagnostic]:
    """Warn about keys of config.json for which the defaults of trainer and engines differ.

    Source: vllm-project/vllm:vllm/transformers_utils/configs/speculators/algos.py@v0.32.0.
    """
    if keys.speculators == "dspark" and not keys.has("sample_from_anchor"):
        message = "its config.json lacks sample_from_anchor: speculators trains with true, vLLM defaults to false"
        hint = "add sample_from_anchor: true if it was trained that way"
        yield Diagnostic("model", "anchor", message, hint, "warning")
    if (tokens := keys.configured_tokens()) and tokens != net.drafts:
        message = (
            f"its speculators_config has {tokens} tokens per step, its block of {net.block_size} drafts {net.drafts}"
        )
        yield Diagnostic("model", "block-size", message, "measure both lengths", "warning")


METHOD = block_net_method(
    "dflash",
    "a net trained for the target fills a block of tokens in one pass",
    "a DFlash net: it fills a block of mask tokens",
)
