# SPDX-License-Identifier: Apache-2.0
"""The format of an EAGLE-3 head inside its target's checkpoint: tensors and keys of config.json.

TensorRT engines do not support such heads, so the format is specific to trtspec, with TensorRT-LLM's module names. In
config.json "eagle3_net_config" describes the layer like EAGLE's "eagle_net_config", and "eagle3" has the other keys of
the head. Tensor names begin with `eagle3.`:

    input_norm.weight, fc_norm.{n}.weight     norms before fc: of all hidden states together, or of each
    fc.weight, fc.bias                        combines the concatenated hidden states
    vocab_embedding.weight                    unless it is the target's
    layers.0.*                                a decoder layer, but attention.qkv reads twice the width: the embedding
                                              after input_layernorm, then the hidden state after hidden_norm
    norm.weight
    lm_head.weight                            unless it is the target's
    d2t, int64                                the target's id of a token minus the draft's id
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

from trtspec.checkpoints.model_config import ConfigReader, ModelConfig
from trtspec.checkpoints.rules import Rule, SourceTensor, Split, Stage
from trtspec.checkpoints.trtllm import read_config
from trtspec.methods.base import VocabularyNames
from trtspec.methods.draft_head import layer_rules

NAME, LAYER_CONFIG = "eagle3", "eagle3_net_config"
LAYER = f"{NAME}.layers.0"
EMBEDDING = "embed_tokens.weight"  # in sources

_SWITCHES = ("norm_before_fc", "fc_norm", "norm_before_residual", "norm_output",
             "fc_bias", "own_embedding", "own_head", "maps_ids")  # fmt: skip


@dataclass(frozen=True)
class Eagle3HeadConfig:
    """An EAGLE-3 head of one layer, for a target of `target_hidden_size` and `target_vocab_size`.

    `layer` describes the layer and the draft vocabulary. `aux_layers` are the target's auxiliary hidden-state layers
    that fc reads: i is the input of layer i, the number of layers is the output of the last layer. They are normalized
    together with `norm_before_fc`, separately with `fc_norm`. The residual is the layer's hidden state, after
    hidden_norm with `norm_before_residual`. The next step reads the layer's output, after the final norm with
    `norm_output`. The other fields state which optional tensors exist.
    """

    layer: ModelConfig
    aux_layers: tuple[int, ...]
    target_hidden_size: int
    target_vocab_size: int
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_before_residual: bool = False
    norm_output: bool = False
    fc_bias: bool = False
    own_embedding: bool = False
    own_head: bool = False
    maps_ids: bool = False

    @property
    def fuse_norms(self) -> tuple[str, ...]:
        """Return the names of the norms before fc."""
        if self.norm_before_fc:
            return ("input_norm",)
        return tuple(f"fc_norm.{number}" for number in range(len(self.aux_layers) * self.fc_norm))

    def render(self) -> dict[str, Any]:
        """Return the head's section of config.json, without the section of the layer."""
        return {"aux_layers": list(self.aux_layers), **{key: getattr(self, key) for key in _SWITCHES}}


def stored_head(document: ConfigReader, names: Collection[str], target: ModelConfig) -> Eagle3HeadConfig | None:
    """Return the head described by a target's config.json, or None; `names` are the checkpoint's tensor names."""
    section, layer = document.section(NAME), document.section(LAYER_CONFIG)
    if section is None or layer is None:
        return None
    aux_layers = tuple(section.get("aux_layers", list))
    if not aux_layers or not all(
        type(aux_layer) is int and 0 <= aux_layer <= target.num_layers for aux_layer in aux_layers
    ):
        raise section.refuse_value(f"aux_layers are {list(aux_layers)}, expected numbers from 0 to {target.num_layers}")
    switches = {key: section.get(key, bool) for key in _SWITCHES}
    return Eagle3HeadConfig(
        read_config(layer, names, f"{LAYER}."), aux_layers, target.hidden_size, target.vocab_size, **switches
    )


@dataclass(frozen=True)
class Eagle3Names(VocabularyNames):
    """A source's tensor names; `layer` is the layer's prefix after the common one."""

    layer: str = "layers.0"


def head_rules(head: Eagle3HeadConfig, names: Eagle3Names = Eagle3Names()) -> list[Rule]:
    """Return the rules of a head's tensors; `names` matter only when reading a source."""
    hidden, vocab = head.layer.hidden_size, head.layer.vocab_size

    def rule(name: str, *shape: int, source: str = "", split: Split = Split.WHOLE) -> Rule:
        return Rule(f"{NAME}.{name}", (SourceTensor(f"{names.prefix}{source or name}", shape),), Stage.LAST, split)

    fused = len(head.aux_layers) * head.target_hidden_size
    found = [rule(f"{module}.weight", fused // len(head.fuse_norms)) for module in head.fuse_norms]
    found.append(rule("fc.weight", hidden, fused))
    if head.fc_bias:
        found.append(rule("fc.bias", hidden))
    if head.own_embedding:
        embedding = (head.target_vocab_size, hidden)
        found.append(rule("vocab_embedding.weight", *embedding, source=EMBEDDING, split=Split.EMBEDDING))
    found += _layer_rules(head.layer, f"{names.prefix}{names.layer}")
    found.append(rule("norm.weight", hidden))
    if head.own_head:
        lm_head = rule("lm_head.weight", vocab, hidden, source=names.lm_head, split=Split.VOCABULARY)
        found.append(replace(lm_head, copy=names.lm_head == EMBEDDING))
    if head.maps_ids:
        found.append(replace(rule("d2t", vocab), dtype="I64"))
    return found


def _layer_rules(config: ModelConfig, source: str) -> Iterator[Rule]:
    """Yield the rules of a decoder layer whose attention input has twice the width."""
    hidden_norm = SourceTensor(f"{source}.hidden_norm.weight", (config.hidden_size,))
    yield Rule(f"{LAYER}.hidden_norm.weight", (hidden_norm,), Stage.LAST)
    for rule in layer_rules(config, 0, LAYER, source):
        is_wide = rule.name == f"{LAYER}.attention.qkv.weight"
        wide = (replace(tensor, shape=(tensor.shape[0], 2 * config.hidden_size)) for tensor in rule.sources)
        yield replace(rule, sources=tuple(wide)) if is_wide else rule
