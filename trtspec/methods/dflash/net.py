# SPDX-License-Identifier: Apache-2.0
"""The description of a block net, read from a checkpoint in any of several dialects or from its target's checkpoint.

A block net fills a block of mask tokens after the text in one pass. Its layers are Qwen3's; `fc` combines hidden states
of several target layers, to which its attention attends before the block. It uses the target's embedding and LM head
unless it has its own. The dialects and their sources:

    z-lab, DeepSpec   keys at the top level or in dflash_config, which has priority; target_layer_ids are the layers
                      whose output is read, from 0
                      (vllm-project/vllm:vllm/model_executor/models/qwen3_dflash.py@v0.32.0)
    ModelOpt          like z-lab, with projector_type and use_confidence_head
                      (NVIDIA/Model-Optimizer:modelopt/torch/export/plugins/hf_spec_export.py@0.47.0)
    speculators       speculators_model_type; aux_hidden_state_layer_ids count from 1
                      (vllm-project/speculators:src/speculators/models/dflash/config.py@v0.9.0)

TensorRT engines do not support such nets, so their format inside a target's checkpoint is specific to trtspec. In
config.json the section "dflash" or "dspark" has the keys of the net, and "dflash_net_config" or "dspark_net_config"
describes the layers like TensorRT-LLM. Tensor names begin with the method's name; layers have TensorRT-LLM's module
names, other tensors the names that most dialects share.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from trtspec.checkpoints.model_config import ConfigReader, ModelConfig
from trtspec.checkpoints.rules import Rule, SourceTensor, Split, Stage
from trtspec.checkpoints.source import Source
from trtspec.checkpoints.trtllm import MOST_LAYERS, read_config
from trtspec.core.diagnostics import quote_value
from trtspec.families.decoder import read_decoder
from trtspec.methods.draft_head import NOT_THIS_KIND, count_layers, layer_rules, resolve_num_layers

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
    """A block net for a target of `target_hidden_size` and `layer.vocab_size` tokens.

    `layer` describes all its layers. A step drafts at most `drafts` tokens: the block size, minus one if no token is
    drafted at the anchor (the text's last token). `target_layers` are the target's layers whose outputs it reads, from
    0; `num_target_layers` is the number of the target's layers, 0 if unknown. `markov_rank` and `markov_head` describe
    the Markov head (0 and "" without one), `confidence_width` is the input width of the confidence head (0 without
    one). `draft_vocab_size` is smaller than the target's if d2t maps to the target's ids. With `is_causal` the
    positions of a block attend only to earlier ones.
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
        """Return whether a token is drafted at the anchor too."""
        return self.drafts == self.block_size


class Keys:
    """Accesses the keys of a net's config.json in any dialect."""

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
        """Return the tokens per step in speculators_config, 0 without that key."""
        section = self.reader.section("speculators_config")
        proposals = section.get("proposal_methods", list, []) if section else []
        first = proposals[0] if proposals and isinstance(proposals[0], dict) else {}
        reader = ConfigReader(first, self.reader.where)
        return reader.positive("speculative_tokens") if "speculative_tokens" in first else 0


def detect_kind(source: Source) -> str:
    """Return "dflash" or "dspark" for a block net, "" for anything else."""
    keys = Keys(source)
    if keys.speculators:
        is_net = keys.speculators in ("dflash", "dflash2", "dspark")
    else:
        is_net = keys.has("block_size") and keys.has("target_layer_ids")
    return ("dspark" if keys.sequential() else "dflash") if is_net else ""


def special_keys(source: Source) -> list[str]:
    """Return the keys that select another computation than the papers' block nets use."""
    keys = Keys(source)
    sections = (keys.inner, keys.reader, keys.layer)
    found = [
        key for key, usual in _USUAL.items() if any(each.values.get(key) not in (None, usual) for each in sections)
    ]
    windowed = any("sliding_attention" in (each.values.get("layer_types") or []) for each in sections)
    return [*found, "layer_types"] if windowed else found


def read_block_net(source: Source, dtype: str, kind: str) -> BlockNet:
    """Return the description of a net of that kind; raise CheckpointError for another kind or a missing key."""
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
        # without the key, by the trainer's default
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
    """Return the key of config.json that describes a net's layers."""
    return f"{kind}_net_config"


def render(net: BlockNet) -> dict[str, Any]:
    """Return a net's section of config.json, without the section of the layers."""
    numbers = {key: getattr(net, key) for key in _NUMBERS}
    return {**numbers, "target_layers": list(net.target_layers), "is_causal": net.is_causal}


def stored_net(document: ConfigReader, names: Collection[str], target: ModelConfig, kind: str) -> BlockNet | None:
    """Return the net described by a target's config.json, or None; `names` are the checkpoint's tensor names."""
    section, layer = document.section(kind), document.section(layer_config(kind))
    if section is None or layer is None:
        return None
    layers = tuple(section.get("target_layers", list))
    if not layers or not all(type(each) is int and 0 <= each < target.num_layers for each in layers):
        raise section.refuse_value(
            f"target_layers are {list(layers)}, expected numbers from 0 to {target.num_layers - 1}"
        )
    numbers: dict[str, Any] = {key: section.get(key, int) for key in _NUMBERS}
    return BlockNet(
        dialect="",
        layer=read_config(layer, names, f"{kind}.layers.0."),
        target_layers=layers,
        num_target_layers=target.num_layers,
        target_hidden_size=target.hidden_size,
        is_causal=section.get("is_causal", bool),
        **numbers,
    )


def net_rules(net: BlockNet, kind: str, names: Collection[str]) -> list[Rule]:
    """Return the rules of a net's tensors: the required tensors, and the optional tensors among `names`."""
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
    """Return the name of a net's tensor in most dialects."""
    return _TOP_LEVEL.sub(lambda found: f"{MARKOV}{found[0]}" if found["markov"] else CONFIDENCE, name)


def _rule(kind: str, name: str, source: str, shape: tuple[int, ...]) -> Rule:
    rule = Rule(f"{kind}.{name}", (SourceTensor(source, shape),), Stage.LAST, Split.WHOLE)
    return replace(rule, dtype="I64") if name == "d2t" else rule
