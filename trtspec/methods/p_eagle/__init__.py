# SPDX-License-Identifier: Apache-2.0
"""P-EAGLE: an EAGLE-3 net of several layers drafts a whole chain in one pass, at mask tokens after the text.

Hui et al. 2026, arXiv:2602.01469. The net has EAGLE-3's first layer, further plain layers, and a learned hidden state
for mask tokens. The formats of speculators and p-eagle-train are supported
(vllm-project/vllm:vllm/model_executor/models/llama_eagle3.py@v0.32.0).

In a target's checkpoint the net is stored like an EAGLE-3 head, with its additional tensors under `p_eagle`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

from trtspec.checkpoints.rules import Rule, Skip, SourceTensor, Stage
from trtspec.checkpoints.source import Source
from trtspec.core.diagnostics import Diagnostic
from trtspec.methods.base import DraftHead, HeadTarget, Method, Options, suggest_for
from trtspec.methods.draft_head import (
    check_ids,
    check_layer,
    check_layers,
    check_mask,
    check_sizes,
    count_layers,
    layer_rules,
    mask_token,
    resolve_num_layers,
)
from trtspec.methods.eagle3 import (
    LAYER_CONFIG,
    Eagle3HeadConfig,
    Eagle3Names,
    check_aux_layers,
    check_count,
    decoder_reader,
    drafts_in_parallel,
    find_names,
    head_rules,
    read_head_config,
)
from trtspec.methods.eagle3 import NAME as EAGLE3

NAME, MOST_LAYERS = "p_eagle", 64


def read_head(source: Source, base: HeadTarget, options: Options) -> DraftHead:
    """Return the P-EAGLE net in `source` as a draft head; raise CheckpointError if it is not a P-EAGLE net."""
    names = find_names(source)
    if not drafts_in_parallel(source):
        raise source.reader.refuse("describes a net that drafts token by token", "use method: eagle3")
    head = read_head_config(source, names, base.config)
    configured = decoder_reader(source.reader).positive("num_hidden_layers", 1)
    layers = resolve_num_layers(configured, count_layers(source.tensors, names.prefix), base.config.num_layers)
    if layers > MOST_LAYERS:
        raise source.reader.refuse_value(f"num_hidden_layers is {layers}, expected at most {MOST_LAYERS}")
    width = len(head.aux_layers) * head.target_hidden_size
    state = _state_shape(source, f"{names.prefix}mask_hidden", width)
    head = replace(head, layer=replace(head.layer, num_layers=layers))
    token = mask_token(source)
    return DraftHead(
        config={EAGLE3: head.render(), NAME: {"mask_token": token, "mask_hidden": list(state)}},
        rules=[*head_rules(head, names), *further_rules(head, state, names)],
        skips=[Skip(".*", "left to engines that read the source")],
        models={LAYER_CONFIG: head.layer},
        excluded=(f"{NAME}.*", f"{EAGLE3}.*"),
        diagnostics=(
            *check_sizes("the net is", head.target_hidden_size, head.target_vocab_size, base.config),
            *check_aux_layers(head, base.config),
            *check_count(source, base.config),
            *check_layers(configured, layers),
            *_check_kind(source),
            *check_mask(token, head.target_vocab_size),
            *check_ids(source, names.prefix, head.layer.vocab_size, head.target_vocab_size),
            *check_layer(head.layer, base.config),
        ),
    )


def _check_kind(source: Source) -> Iterator[Diagnostic]:
    """Yield an error for a net that engines would run as EAGLE-3 because of its speculators_model_type."""
    if source.config.get("speculators_model_type") == "eagle3":
        message = "speculators_model_type is 'eagle3', but mask_hidden makes it a P-EAGLE net"
        yield Diagnostic("model", "kind", message, "set speculators_model_type: peagle in its config.json")


def _state_shape(source: Source, name: str, width: int) -> tuple[int, ...]:
    """Return the stored shape of the hidden state for mask tokens: `width` after one or two dimensions of size 1."""
    stored = source.tensors.get(name)
    return stored.shape if stored and prod(stored.shape) == width else (1, 1, width)


def further_rules(head: Eagle3HeadConfig, state: tuple[int, ...], names: Eagle3Names) -> Iterator[Rule]:
    """Yield the conversion rules of the layers after the first, and of the hidden state for mask tokens, which has
    shape `state`.

    `names` are needed only to read a source.
    """
    yield Rule(f"{NAME}.mask_hidden", (SourceTensor(f"{names.prefix}mask_hidden", state),), Stage.LAST)
    for number in range(1, head.layer.num_layers):
        layer = f"layers.{number}"
        yield from layer_rules(head.layer, number, f"{NAME}.{layer}", f"{names.prefix}{layer}")


METHOD = Method(
    summary="a net trained for the target drafts a chain from its hidden states in one pass",
    drafts_with="head",
    has_confidence=True,
    draft_passes="one",
    draft_lens=range(1, 17),
    default_draft_len=7,
    read_head=read_head,
    suggest=suggest_for(drafts_in_parallel, "DRAFT is a P-EAGLE net: it has a hidden state for mask tokens"),
    vocabulary_names=find_names,
)
