# SPDX-License-Identifier: Apache-2.0
"""Draft heads that are stored in their target's checkpoint: the reader, and checks shared by several methods."""

from __future__ import annotations

import re
import sys
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from trtspec.checkpoints.model_config import ConfigReader, ModelConfig
from trtspec.checkpoints.rules import Matched, Rule, Skip, Stage, find_parts, match
from trtspec.checkpoints.safetensors import TensorInfo
from trtspec.checkpoints.sharding import ParallelMapping, row_split_problems
from trtspec.checkpoints.source import Source, load_source
from trtspec.checkpoints.source_model import SourceModel
from trtspec.checkpoints.tied_embeddings import have_equal_values
from trtspec.checkpoints.trtllm import LM_HEAD, TrtllmCheckpoint
from trtspec.core.diagnostics import Diagnostic
from trtspec.core.errors import CheckpointError
from trtspec.core.files import open_regular
from trtspec.families.decoder import attention, mlp
from trtspec.methods.base import DraftHead, HeadTarget, find_method

NOT_THIS_KIND = "name a draft of this kind, or let `trtspec init TARGET DRAFT` find the method of a draft"
LAYERS = "layers"  # diagnostic code for a number of layers that contradicts the tensors
# In order of priority, as in vllm-project/vllm:vllm/v1/worker/gpu/spec_decode/utils.py@v0.32.0.
MASK_KEYS = ("mask_token_id", "pard_token", "ptd_token_id")
FEWER = "set target.parallel.tensor to a divisor of it"


def layer_rules(config: ModelConfig, number: int, target: str, source: str) -> Iterator[Rule]:
    """Yield the conversion rules of a head's layer with tensor name prefixes `target` (converted) and `source`."""
    for rule in attention(config, number) + mlp(config, number):
        named = (tensor.name.replace(f"model.layers.{number}", source, 1) for tensor in rule.sources)
        sources = tuple(replace(tensor, name=name) for tensor, name in zip(rule.sources, named, strict=True))
        yield Rule(f"{target}.{rule.target}", sources, Stage.LAST, rule.split)


def check_sizes(what: str, hidden_size: int, vocab_size: int, target: ModelConfig) -> Iterator[Diagnostic]:
    """Yield errors for sizes that differ from the target's; `what` is subject and verb, such as "the head is"."""
    hint = "use it with the model that it was trained for, or a fine-tune of that model"
    if hidden_size != target.hidden_size:
        message = f"{what} for hidden states of {hidden_size}, the target's have {target.hidden_size}"
        yield Diagnostic("model", "hidden-size", message, hint)
    if vocab_size != target.vocab_size:
        message = f"{what} for {vocab_size} vocabulary entries, the target has {target.vocab_size}"
        yield Diagnostic("model", "vocabulary", message, hint)


def check_layer(head: ModelConfig, target: ModelConfig) -> Iterator[Diagnostic]:
    """Note a rotary embedding that differs from the target's; it does not change the output.

    Heads are trained with their own: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B has base 10000 for a target with 500000. Only
    an edited config.json would be a mistake, which lowers acceptance.
    """
    if (head.rotary_base, head.rope_scaling) != (target.rotary_base, target.rope_scaling):
        message = f"the head's rotary embedding has {_describe(head)}, the target's {_describe(target)}"
        hint = "compare the trainer's config: correct if the head was trained this way"
        yield Diagnostic("model", "rope", message, hint, "note")


def count_layers(names: Iterable[str], prefix: str = "") -> int:
    """Return the number of layers in a draft's tensor names, which begin with `prefix`."""
    pattern = re.compile(rf"{re.escape(prefix)}layers\.(\d{{1,4}})\.")
    return 1 + max((int(found[1]) for name in names if (found := pattern.match(name))), default=-1)


def resolve_num_layers(configured: int, found: int, target_layers: int) -> int:
    """Return `configured`, or the number of layers `found` in the tensors if the config has the target's number."""
    return found if found and configured == target_layers else configured


def check_layers(configured: int, found: int) -> Iterator[Diagnostic]:
    """Warn if config.json and the tensors have different numbers of layers."""
    if configured != found:
        message = f"num_hidden_layers is {configured}, but the tensors' number of layers is {found}, which is used"
        hint = f"set num_hidden_layers: {found} in its config.json for other engines"
        yield Diagnostic("model", LAYERS, message, hint, "warning")


def check_shift(layers: tuple[int, ...], usual: tuple[int, ...], what: str, hint: str) -> Iterator[Diagnostic]:
    """Warn if `layers` are the `usual` ones shifted by one, a sign of another numbering; `what` is the subject."""
    for shift in (-1, 1):
        if layers and layers == tuple(number + shift for number in usual):
            yield Diagnostic("model", "aux-layers", f"{what} shifted by {shift:+}", hint, "warning")


def mask_token(source: Source) -> int | None:
    """Return the id of the mask token for parallel drafting, or None if config.json lacks it."""
    return next((source.reader.get(key, int) for key in MASK_KEYS if source.config.get(key) is not None), None)


def mask_key(source: Source) -> dict[str, int]:
    """Return {key: mask token id} for the config.json of a converted checkpoint; empty without a mask token."""
    named = (source.config.get(key) for key in MASK_KEYS)
    return next(({MASK_KEYS[0]: token} for token in named if type(token) is int), {})


def check_mask(token: int | None, vocab: int) -> Iterator[Diagnostic]:
    """Yield an error for a mask token that is missing or outside the vocabulary."""
    if token is None:
        message = f"its config.json lacks a mask token ({', '.join(MASK_KEYS)})"
        hint = "use another draft if it was not trained to draft in parallel, or add the key"
        yield Diagnostic("model", "mask-token", message, hint)
    elif not 0 <= token < vocab:
        message = f"its mask token {token} is outside the vocabulary, 0..{vocab - 1}"
        yield Diagnostic("model", "mask-token", message, "correct its config.json")


def check_ids(source: Source, prefix: str, drafted: int, vocab: int) -> Iterator[Diagnostic]:
    """Check d2t and t2d against both vocabularies. Tables of a wrong shape are reported elsewhere.

    d2t is the target's id of each draft token minus the draft's id. t2d marks the target's tokens that can be drafted.
    `drafted` and `vocab` are the sizes of the draft's and the target's vocabulary.
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
    """Return the target's id of each draft token, from the offsets in d2t."""
    return [number + offset for number, offset in enumerate(_read_offsets(d2t))]


def _read_offsets(d2t: TensorInfo) -> array[int]:
    offsets = array("q", _read(d2t))
    if sys.byteorder == "big":
        offsets.byteswap()
    return offsets


def _wrong_ids(ids: Sequence[int], marked: list[int] | None, vocab: int) -> str | None:
    """Return an error message for the target ids of draft tokens, or None; `marked` are the ids in t2d, if any."""
    if (invalid := next((number for number in ids if not 0 <= number < vocab), None)) is not None:
        return f"d2t maps to the id {invalid}, outside 0..{vocab - 1}"
    if any(number >= after for number, after in pairwise(ids)):
        return "d2t maps to ids that do not ascend"
    return "t2d marks other ids than d2t maps to" if marked is not None and list(ids) != marked else None


def _read(tensor: TensorInfo) -> bytes:
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


def stored_section(checkpoint: TrtllmCheckpoint, key: str, what: str, method: str) -> ConfigReader:
    """Return the section `key` of a converted checkpoint's config.json, which describes a draft head.

    Raise CheckpointError if it is missing; `what` names the head in the message, such as "an EAGLE head".
    """
    if (section := checkpoint.document.section(key)) is None:
        hint = f"convert it with method: {method} and the {what.rpartition(' ')[2]} as speculation.draft"
        raise CheckpointError(f"does not contain {what}", where=str(checkpoint.root), hint=hint)
    return section


@dataclass(frozen=True)
class SourceHead:
    """A draft head read for a target; `matched` are its source tensors, including those borrowed from the target."""

    source: Source
    head: DraftHead
    matched: Matched

    @property
    def rules(self) -> list[Rule]:
        """Return the conversion rules of all tensors that the head adds to the target's checkpoint."""
        return [*self.head.rules, *self.head.borrowed]

    def diagnose(self, mapping: ParallelMapping) -> list[Diagnostic]:
        """Return mismatches of the head with its target, and tensors that cannot be divided among its ranks."""
        fits = [each.below("speculation.draft") for each in self.head.diagnostics]
        return fits + [
            Diagnostic("target.parallel", "parallel", message, FEWER)
            for message in row_split_problems(self.rules, mapping)
        ]

    def check(self, mapping: ParallelMapping) -> None:
        """Raise CheckpointError if the head does not fit its target or cannot be divided among its ranks."""
        errors = [each.message for each in self.diagnose(mapping) if each.severity == "error"]
        if errors:
            raise CheckpointError(
                "; ".join(errors), where=str(self.source.root), hint="run trtspec check for a fix of each error"
            )


def read_head(
    source: Source, method: str, options: dict[str, Any], target: SourceModel, draft_len: int | None = None
) -> SourceHead:
    """Read a draft head for a target; raise CheckpointError if it is incomplete or the method does not use heads.

    `draft_len` is the recipe's draft length, or None for the method's default.
    """
    drafting = find_method(method)
    if drafting.read_head is None:
        raise CheckpointError(f"{method} does not use a draft head", where=str(source.root), hint="remove the draft")
    parsed = drafting.parse(options)
    shape = drafting.shape_for(parsed, draft_len)
    head = drafting.read_head(source, HeadTarget(target.config, target.rules, shape.max_depth), parsed)
    borrowed = find_parts(head.borrowed, target.source)
    head = _without_copy(head, source, borrowed, target.source)
    matched = match(head.rules, head.skips, source)
    return SourceHead(source, head, Matched(matched.sources | borrowed, matched.skipped))


def _without_copy(
    head: DraftHead, source: Source, borrowed: Mapping[str, tuple[TensorInfo, ...]], target: Source
) -> DraftHead:
    """Skip the head's LM head if the method drafts with the target's, and warn if their values differ."""
    lm_head = source.tensors.get(LM_HEAD)
    target_parts = next((parts for name, parts in borrowed.items() if name.endswith(LM_HEAD)), ())
    is_used = any(tensor.name == LM_HEAD for rule in head.rules for tensor in rule.sources)
    if lm_head is None or len(target_parts) != 1 or is_used:
        return head
    found: tuple[Diagnostic, ...] = ()
    if source.absent or target.absent:
        reason = "the target's is used; the two are compared once the weights are available"
    elif have_equal_values(lm_head, target_parts[0]):
        reason = "equal to the target's, which is used"
    else:
        reason = "not equal to the target's, which is used"
        message = (
            f"its {LM_HEAD} differs from the target's and is ignored: heads of this kind draft with the target's"
            " LM head, as in the paper and in other engines"
        )
        hint = "use the target that it was trained with, or measure its acceptance"
        found = (Diagnostic("model", "lm-head", message, hint, "warning"),)
    skips = [*head.skips, Skip(re.escape(LM_HEAD), reason)]
    return replace(head, skips=skips, diagnostics=(*head.diagnostics, *found))


def load_head(
    root: Path, method: str, options: dict[str, Any], target: SourceModel, draft_len: int | None = None
) -> SourceHead:
    """Read the draft head in the directory `root` for a target; raise CheckpointError like `read_head`."""
    return read_head(load_source(root), method, options, target, draft_len)
