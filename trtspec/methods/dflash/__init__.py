# SPDX-License-Identifier: Apache-2.0
"""DFlash: a block net fills a block of mask tokens after the text in one pass, from hidden states of the target.

Chen et al. 2026, arXiv:2602.06036. The description and the checks of block nets are shared with DSpark.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from trtspec.checkpoints.model_config import ModelConfig
from trtspec.checkpoints.rules import Skip
from trtspec.checkpoints.source import Source
from trtspec.core.diagnostics import Diagnostic
from trtspec.methods.base import DraftHead, HeadTarget, Method, Options, Suggestion, VocabularyNames
from trtspec.methods.dflash.net import BlockNet, Keys, detect_kind, layer_config, net_rules, read_block_net, render
from trtspec.methods.draft_head import check_ids, check_layer, check_layers, check_mask, check_sizes

SKIPS = [Skip(r"t2d|verifier_.*", "needed in training only"), Skip(".*", "left to engines that read the source")]


def block_net_method(kind: str, summary: str, why: str) -> Method:
    """Return the method of block nets of a kind; `why` states how a draft is recognized as such a net."""

    def read_head(source: Source, base: HeadTarget, options: Options) -> DraftHead:
        return describe(source, base, kind)

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
        read_head=read_head,
        suggest=suggest,
        vocabulary_names=_vocabulary_names,
    )


def _vocabulary_names(source: Source) -> VocabularyNames:
    return VocabularyNames(rows=tuple(name for name in source.tensors if name.endswith("markov_w2.weight")))


def describe(source: Source, base: HeadTarget, kind: str) -> DraftHead:
    """Return the net in `source` as a draft head; raise CheckpointError like `read_block_net`."""
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
    """Report mismatches with the target."""
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
    """Warn if the layers are z-lab's default layers shifted by one, which suggests the other numbering convention.

    z-lab/dflash:dflash/model.py@44947fb, build_target_layer_ids.
    """
    steps, last = len(net.target_layers) - 1, target.num_layers - 3
    usual = tuple(round(1 + number * (last - 1) / steps) for number in range(steps + 1)) if steps else ()
    for shift in (-1, 1):
        if usual and net.target_layers == tuple(number + shift for number in usual):
            message = f"the target layers that it reads are z-lab's defaults shifted by {shift:+}"
            hint = "target_layer_ids numbers outputs from 0, speculators' aux_hidden_state_layer_ids from 1"
            yield Diagnostic("model", "aux-layers", message, hint, "warning")


def _check_defaults(keys: Keys, net: BlockNet) -> Iterator[Diagnostic]:
    """Warn if engines may interpret config.json differently from the trainer.

    vllm-project/vllm:vllm/transformers_utils/configs/speculators/algos.py@v0.32.0
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
