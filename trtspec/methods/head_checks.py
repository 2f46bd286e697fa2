# SPDX-License-Identifier: Apache-2.0
"""Checks of a draft head against its target."""

from __future__ import annotations

import re
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from trtspec.checkpoints.model_config import ModelConfig
from trtspec.checkpoints.safetensors import TensorInfo
from trtspec.checkpoints.source import Source
from trtspec.core.diagnostics import Diagnostic
from trtspec.core.files import open_regular

NOT_THIS_KIND = "name a draft of this kind, or let `trtspec init TARGET DRAFT` find the method of a draft"
LAYERS = "layers"  # the code for a number of layers that contradicts the tensors
# In the order they are read; vllm-project/vllm:vllm/v1/worker/gpu/spec_decode/utils.py@v0.32.0.
MASK_KEYS = ("mask_token_id", "pard_token", "ptd_token_id")


def check_sizes(what: str, hidden_size: int, vocab_size: int, target: ModelConfig) -> Iterator[Diagnostic]:
    """Report sizes of a head that differ from the target's; `what` is subject and verb, as in "the head is"."""
    hint = "use it with the model that it was trained for, or a fine-tune of that model"
    if hidden_size != target.hidden_size:
        message = f"{what} for hidden states of {hidden_size}, the target's have {target.hidden_size}"
        yield Diagnostic("model", "hidden-size", message, hint)
    if vocab_size != target.vocab_size:
        message = f"{what} for {vocab_size} vocabulary entries, the target has {target.vocab_size}"
        yield Diagnostic("model", "vocabulary", message, hint)


def check_layer(head: ModelConfig, target: ModelConfig) -> Iterator[Diagnostic]:
    """Warn if a head's layer differs from the target's, which can lower acceptance but does not change the output.

    Published heads have fewer positions than their targets.
    """
    if head.max_positions < target.max_positions:
        message = f"the head has {head.max_positions} positions, the target {target.max_positions}"
        hint = "acceptance may be lower beyond them; measure on long texts"
        yield Diagnostic("model", "positions", message, hint, "warning")
    if (head.rotary_base, head.rope_scaling) != (target.rotary_base, target.rope_scaling):
        message = f"the head's rotary embedding has {_describe(head)}, the target's {_describe(target)}"
        yield Diagnostic(
            "model",
            "rope",
            message,
            "compare the trainer's config: correct if the head was trained this way",
            "warning",
        )


def count_layers(names: Iterable[str], prefix: str = "") -> int:
    """Return the number of layers in a draft's tensors; `prefix` is the prefix of their names."""
    pattern = re.compile(rf"{re.escape(prefix)}layers\.(\d{{1,4}})\.")
    return 1 + max((int(found[1]) for name in names if (found := pattern.match(name))), default=-1)


def resolve_num_layers(configured: int, found: int, target_layers: int) -> int:
    """Return the number of layers of a net: the configured number, unless that is the target's number of layers."""
    return found if found and configured == target_layers else configured


def check_layers(configured: int, found: int) -> Iterator[Diagnostic]:
    """Warn if config.json has another number of layers (possibly the target's) than the tensors."""
    if configured != found:
        message = f"num_hidden_layers is {configured}, but the tensors' number of layers is {found}, which is used"
        hint = f"set num_hidden_layers: {found} in its config.json for other engines"
        yield Diagnostic("model", LAYERS, message, hint, "warning")


def mask_token(source: Source) -> int | None:
    """Return the id of the mask token for parallel drafting, or None if config.json lacks such a key."""
    return next((source.reader.get(key, int) for key in MASK_KEYS if source.config.get(key) is not None), None)


def mask_key(source: Source) -> dict[str, int]:
    """Return the config.json key of the mask token for a converted checkpoint; empty without a mask token."""
    named = (source.config.get(key) for key in MASK_KEYS)
    return next(({MASK_KEYS[0]: token} for token in named if type(token) is int), {})


def check_mask(token: int | None, vocab: int) -> Iterator[Diagnostic]:
    """Report a mask token that is missing or outside the vocabulary."""
    if token is None:
        message = f"its config.json lacks a mask token ({', '.join(MASK_KEYS)})"
        hint = "use another draft if it was not trained to draft in parallel, or add the key"
        yield Diagnostic("model", "mask-token", message, hint)
    elif not 0 <= token < vocab:
        message = f"its mask token {token} is outside the vocabulary, 0..{vocab - 1}"
        yield Diagnostic("model", "mask-token", message, "correct its config.json")


def check_ids(source: Source, prefix: str, drafted: int, vocab: int) -> Iterator[Diagnostic]:
    """Check the tables of drafted ids against both vocabularies; other checks report tables of a wrong shape.

    d2t has the target's id of each drafted token minus the draft's id; t2d marks the target's tokens that are drafted.
    """
    d2t, t2d = (source.tensors.get(f"{prefix}{name}") for name in ("d2t", "t2d"))
    if d2t is None or (d2t.dtype, d2t.shape) != ("I64", (drafted,)):
        return
    offsets = _read_offsets(d2t)
    hint = "the head's files are inconsistent; use files of one export"
    if t2d and (t2d.dtype, t2d.shape) != ("BOOL", (vocab,)):
        yield Diagnostic("model", "d2t", f"t2d is {t2d.dtype} {list(t2d.shape)}, expected BOOL {[vocab]}", hint)
        return
    marked = [number for number, drafted in enumerate(_read(t2d)) if drafted] if t2d else None
    if problem := _wrong_ids([number + offset for number, offset in enumerate(offsets)], marked, vocab):
        if _wrong_ids(offsets, marked, vocab) is None:
            problem = "d2t has absolute ids of the target, but engines expect offsets from the draft's ids"
            hint = "subtract 0, 1, 2, ... from d2t"
        yield Diagnostic("model", "d2t", problem, hint)


def drafted_ids(d2t: TensorInfo) -> list[int]:
    """Return the target's ids of the drafted tokens."""
    return [number + offset for number, offset in enumerate(_read_offsets(d2t))]


def _read_offsets(d2t: TensorInfo) -> array[int]:
    offsets = array("q", _read(d2t))
    if sys.byteorder == "big":
        offsets.byteswap()
    return offsets


def _wrong_ids(ids: Sequence[int], marked: list[int] | None, vocab: int) -> str | None:
    """Return the error of the target's ids of drafted tokens, or None if they are valid."""
    if (invalid := next((number for number in ids if not 0 <= number < vocab), None)) is not None:
        return f"d2t maps to the id {invalid}, outside 0..{vocab - 1}"
    if any(number >= after for number, after in pairwise(ids)):
        return "d2t maps to ids that do not ascend"
    return "t2d marks other ids than d2t maps to" if marked is not None and list(ids) != marked else None


def _read(tensor: TensorInfo) -> bytes:
    """Return a small tensor's bytes."""
    with open_regular(tensor.file) as file:
        file.seek(tensor.offset)
        return file.read(tensor.nbytes)


def _describe(config: ModelConfig) -> str:
    scaling = config.rope_scaling
    text = f"base {config.rotary_base:g}"
    if scaling:
        text += f" and {scaling.kind} scaling by {scaling.factor:g}"
        text += f" of {scaling.original_max_position} positions" if scaling.original_max_position else ""
    return text
