# SPDX-License-Identifier: Apache-2.0
"""Gemma 4 assistants: a small decoder that was trained with a target drafts a chain on the target's keys and values.

Google publishes an assistant for each Gemma 4 model (https://ai.google.dev/gemma/docs/mtp/overview). Its input is the
target's embedding of the last token, joined with the target's last hidden state. Its layers have queries only: each
reads the KV cache of the target's last layer of the same type that has a cache (huggingface/transformers:
src/transformers/models/gemma4_assistant/configuration_gemma4_assistant.py@v5.23.0). Engines that load the unchanged
checkpoints run it, and this module checks the pair of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from trtspec.checkpoints.previews import compare_tokenizers
from trtspec.checkpoints.source import Source
from trtspec.core.diagnostics import Diagnostic
from trtspec.core.errors import TrtspecError
from trtspec.methods.base import DraftHead, HeadTarget, Method, Options, suggest_for
from trtspec.methods.draft_head import NOT_THIS_KIND

ASSISTANT, UNIFIED = "gemma4_assistant", "gemma4_unified_assistant"
CLASSES = {"Gemma4AssistantForCausalLM": ASSISTANT, "Gemma4UnifiedAssistantForCausalLM": UNIFIED}
TARGETS = ("gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text")
FULL = "full_attention"
PAIR = "use the assistant of this target: google/gemma-4-31B-it-assistant drafts for google/gemma-4-31B-it"
DRAFT, TARGET = "speculation.draft.model", "target.model"


def assistant_type(source: Source) -> str:
    """Return the model_type of a Gemma 4 assistant, also if only its class is named; "" for another checkpoint."""
    named = source.config.get("architectures")
    by_class = CLASSES.get(str(named[0]), "") if isinstance(named, list) and named else ""
    model_type = source.config.get("model_type")
    return str(model_type) if model_type in (ASSISTANT, UNIFIED) else by_class


def check_pair(target: Source, draft: Source, max_seq_len: int) -> Iterator[Diagnostic]:
    """Yield errors for an assistant that cannot draft for a target, whose texts have at most `max_seq_len` tokens."""
    model_type = str(target.config.get("model_type"))
    if model_type not in TARGETS:
        message = f"Gemma 4 assistants draft for Gemma 4, not for {model_type}"
        yield Diagnostic(TARGET, "family", message, "use another method, such as ngram")
        return
    if not assistant_type(draft):
        message = f"the drafter is a {draft.config.get('model_type')} model, not a Gemma 4 assistant"
        yield Diagnostic(DRAFT, "class", message, PAIR)
        return
    yield from _check_sizes(target, draft, max_seq_len)
    yield from _check_layers(_text(target), _text(draft))
    yield from _check_tokenizers(target, draft)


def _text(source: Source) -> Mapping[str, Any]:
    section = source.config.get("text_config")
    return section if isinstance(section, Mapping) else source.config


def _number(config: Mapping[str, Any], *keys: str) -> int:
    """Return the first of the keys that is a number, or 0."""
    return next((value for key in keys if isinstance(value := config.get(key), int)), 0)


def _check_sizes(target: Source, draft: Source, max_seq_len: int) -> Iterator[Diagnostic]:
    ours, theirs = _text(target), _text(draft)
    width, wanted = _number(ours, "hidden_size"), _number(draft.config, "backbone_hidden_size")
    if width != wanted:
        message = f"the assistant reads hidden states of {wanted}, the target's have {width}"
        yield Diagnostic(DRAFT, "hidden-size", message, PAIR)
    rows, drafted = _number(ours, "vocab_size"), _number(theirs, "vocab_size")
    if rows != drafted:
        message = f"the assistant has {drafted} vocabulary entries, the target {rows}"
        yield Diagnostic(DRAFT, "vocabulary", message, PAIR)
    centroids = _number(draft.config, "num_centroids")
    if draft.config.get("use_ordered_embeddings") and (not centroids or drafted % centroids):
        message = f"its {drafted} vocabulary entries cannot be divided into {centroids} clusters of equal size"
        yield Diagnostic(DRAFT, "clusters", message, "num_centroids of its config.json must divide vocab_size")
    positions = _number(theirs, "max_position_embeddings")
    if 0 < positions < max_seq_len:
        message = f"the assistant has {positions} positions, but texts may have {max_seq_len} tokens"
        yield Diagnostic(DRAFT, "positions", message, f"set engine.max_seq_len to at most {positions}")


def _check_layers(target: Mapping[str, Any], draft: Mapping[str, Any]) -> Iterator[Diagnostic]:
    """Yield an error for each type of layer whose keys and values the target does not provide."""
    kinds, own = draft.get("layer_types"), target.get("layer_types")
    if not isinstance(kinds, list) or not isinstance(own, list):
        return
    cached = own[: len(own) - _number(target, "num_kv_shared_layers")]
    for kind in sorted(set(map(str, kinds))):
        heads, needed = _key_heads(target, kind), _key_heads(draft, kind)
        if kind not in cached:
            message = f"the assistant's {kind} layers read keys and values, which no such layer of the target stores"
            yield Diagnostic(DRAFT, f"layers-{kind}", message, PAIR)
        elif heads != needed:
            message = f"the assistant's {kind} layers read {needed[0]} key heads of size {needed[1]}, "
            message += f"the target's have {heads[0]} of size {heads[1]}"
            yield Diagnostic(DRAFT, f"key-heads-{kind}", message, PAIR)


def _key_heads(text: Mapping[str, Any], kind: str) -> tuple[int, int]:
    """Return number and size of the key heads of a type of layer."""
    if kind != FULL:
        return _number(text, "num_key_value_heads"), _number(text, "head_dim")
    number = _number(text, "num_global_key_value_heads", "num_key_value_heads")
    return number, _number(text, "global_head_dim", "head_dim")


def _check_tokenizers(target: Source, draft: Source) -> Iterator[Diagnostic]:
    if not all((source.root / "tokenizer.json").is_file() for source in (target, draft)):
        return  # engines then use the target's
    try:
        compare_tokenizers(target, draft)
    except TrtspecError as error:
        yield Diagnostic(DRAFT, "tokenizer", error.message, error.hint or PAIR)


def read_head(source: Source, base: HeadTarget, options: Options) -> DraftHead:
    """Raise CheckpointError: heads are read for targets of a family, and no family describes Gemma 4."""
    if not assistant_type(source):
        raise source.reader.refuse("is not a Gemma 4 assistant", NOT_THIS_KIND)
    raise source.reader.refuse(f"is an assistant for Gemma 4, not for {base.config.architecture}", PAIR)


METHOD = Method(
    summary="a Gemma 4 assistant drafts a chain on the target's keys and values",
    drafts_with="head",
    draft_lens=range(1, 17),
    default_draft_len=4,
    read_head=read_head,
    suggest=suggest_for(lambda source: bool(assistant_type(source)), "DRAFT is a Gemma 4 assistant"),
)
