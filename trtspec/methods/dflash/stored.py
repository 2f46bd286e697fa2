# SPDX-License-Identifier: Apache-2.0
"""The format of a block net inside its target's checkpoint: tensors and keys of config.json.

TensorRT engines do not support such nets, so the format is specific to trtspec. In config.json the section "dflash" or
"dspark" has the keys of the net, and "dflash_net_config" or "dspark_net_config" describes the layers like TensorRT-LLM.
Tensor names begin with the method's name; layers have TensorRT-LLM's module names, other tensors the names that most
dialects share.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from trtspec.checkpoints.model_config import ConfigReader, ModelConfig
from trtspec.checkpoints.rules import Rule, SourceTensor, Split, Stage
from trtspec.checkpoints.trtllm import read_config
from trtspec.families.decoder import attention, mlp
from trtspec.methods.dflash.net import BlockNet

MARKOV, CONFIDENCE = "markov_head.", "confidence_head.proj."
# ModelOpt stores the tensors of both heads at the top level.
_SHARED = {"markov_w1.": f"{MARKOV}markov_w1.", "markov_w2.": f"{MARKOV}markov_w2.", "confidence_proj.": CONFIDENCE}
_NUMBERS = ("block_size", "drafts", "mask_token", "draft_vocab_size", "markov_rank", "confidence_width")


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
    sources = {_shared(name): name for name in names}
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
        found += [_in_net(kind, number, rule) for rule in attention(net.layer, number) + mlp(net.layer, number)]
    return found


def _shared(name: str) -> str:
    start = next((start for start in _SHARED if name.startswith(start)), "")
    return f"{_SHARED.get(start, '')}{name.removeprefix(start)}"


def _rule(kind: str, name: str, source: str, shape: tuple[int, ...]) -> Rule:
    rule = Rule(f"{kind}.{name}", (SourceTensor(source, shape),), Stage.LAST, Split.WHOLE)
    return replace(rule, dtype="I64") if name == "d2t" else rule


def _in_net(kind: str, number: int, rule: Rule) -> Rule:
    sources = tuple(replace(tensor, name=tensor.name.removeprefix("model.")) for tensor in rule.sources)
    return Rule(f"{kind}.layers.{number}.{rule.target}", sources, Stage.LAST, rule.split)
