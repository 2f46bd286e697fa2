# SPDX-License-Identifier: Apache-2.0
"""Renders a draft's tensors in another dialect: bit-identical copies, except the vocabulary maps."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from trtspec.checkpoints.safetensors import TensorInfo
from trtspec.checkpoints.source_model import SourceModel
from trtspec.checkpoints.writer import Part
from trtspec.methods.draft_formats.borrowed import RULES, have_equal_bits, target_tensor
from trtspec.methods.draft_formats.dialect import LM_HEAD, DraftSchema
from trtspec.methods.draft_formats.draft import SourceDraft, is_quantized
from trtspec.methods.draft_formats.names import dialect_names
from trtspec.methods.head_checks import drafted_ids

D2T, T2D = "d2t", "t2d"
MAPS = (D2T, T2D)
DRAFTED = "draft_vocab_size"


def render_tensors(draft: SourceDraft, form: DraftSchema, target: SourceModel | None) -> list[Part]:
    """Return the dialect's tensors, sorted by name.

    Raise CheckpointError if the dialect does not support a tensor, or requires one that neither draft nor target has.
    """
    _check_lacking(draft, form)
    _check_target_tensors(draft, target)
    parts = {name: Part.copy(name, tensor) for name, tensor in draft.tensors.items() if name not in MAPS}
    for name in form.shared:
        if name in parts and (name != LM_HEAD or not _is_reduced(draft)):
            _check_shared(draft, name, target)
            del parts[name]
    parts |= {part.name: part for part in _maps(draft, form)}
    returning = [name for name in draft.left_out if target and name not in form.shared]
    shared = [LM_HEAD] if draft.facts.get("shares_lm_head") and LM_HEAD not in form.shared else []
    for name in (*form.needs, *returning, *shared):
        if name not in parts:
            parts[name] = Part.copy(name, _borrow(draft, name, target))
    rename = dialect_names(draft.facts, form)
    found = [replace(part, name=rename(name)) for name, part in parts.items()] + _target_tensors(draft, form, target)
    return sorted(found, key=lambda part: part.name)


def omitted_tensors(draft: SourceDraft, parts: list[Part]) -> list[str]:
    """Return the names of shared target tensors that are missing from `parts`, omitted now or by an earlier run."""
    written = {part.name for part in parts}
    return [name for name in RULES if (name in draft.tensors or name in draft.left_out) and name not in written]


def _is_reduced(draft: SourceDraft) -> bool:
    return DRAFTED in draft.facts and bool(draft.facts[DRAFTED] < draft.layer["vocab_size"])


def _check_lacking(draft: SourceDraft, form: DraftSchema) -> None:
    for pattern, why in form.lacks.items():
        if found := [name for name in draft.tensors if re.fullmatch(pattern, name)]:
            more = f" and {len(found) - 1} more" if len(found) > 1 else ""
            message = f"{form.architecture} does not support {found[0]}{more}: {why}"
            raise draft.refuse(message, "choose another dialect")


def _check_shared(draft: SourceDraft, name: str, target: SourceModel | None) -> None:
    """Raise CheckpointError unless an omitted tensor is bit-identical to the target's."""
    if target is None:
        raise draft.refuse(f"has a {name}, which this dialect takes from the target", "give --target to compare them")
    if not have_equal_bits(draft.tensors[name], target_tensor(name, target)):
        message = f"its {name} differs from the target's, which this dialect uses"
        raise draft.refuse(message, "choose a dialect that stores it")


def _check_target_tensors(draft: SourceDraft, target: SourceModel | None) -> None:
    """Raise CheckpointError unless the model that contains a draft is bit-identical to the target."""
    for name, tensor in draft.beside.items():
        if target is None:
            raise draft.refuse("is stored in a whole model, which is not converted", "give --target to compare them")
        expected = target.source.tensors.get(name)
        if expected is None or not have_equal_bits(tensor, expected):
            raise draft.refuse(f"its {name} is not the target's", "give the target that it was trained with")


def _target_tensors(draft: SourceDraft, form: DraftSchema, target: SourceModel | None) -> list[Part]:
    """Return the target's tensors for a dialect that stores drafts in the target's files, otherwise nothing."""
    if not form.is_whole_model:
        return []
    if target is None:
        raise draft.refuse("this dialect stores heads in their target's files", "give --target")
    if is_quantized(target.source):
        message = f"this dialect stores heads in their target's files, but {target.source.root} is quantized"
        raise draft.refuse(message, "give the target before quantization")
    return [Part.copy(name, tensor) for name, tensor in target.source.tensors.items()]


def _borrow(draft: SourceDraft, name: str, target: SourceModel | None) -> TensorInfo:
    """Return a tensor that the dialect requires and the draft shares with its target."""
    if name not in RULES:
        raise draft.refuse(f"has no {name}, which this dialect requires", "choose another dialect")
    if target is None:
        raise draft.refuse(f"has no {name}, which this dialect requires from the target", "give --target")
    return target_tensor(name, target)


def _maps(draft: SourceDraft, form: DraftSchema) -> Iterator[Part]:
    """Yield d2t (the target's id of a drafted token minus the draft's id) and t2d (whether a token is drafted)."""
    if DRAFTED not in draft.facts:
        return
    drafted, vocab = draft.facts[DRAFTED], draft.layer["vocab_size"]
    if drafted == vocab and not form.maps_whole_vocabulary:
        return
    stored = draft.tensors.get(D2T)
    ids = drafted_ids(stored) if stored else range(drafted)
    yield Part.copy(D2T, stored) if stored else Part(D2T, "I64", (drafted,), None)
    if form.has_t2d:
        marked = bytearray(vocab)
        for number in ids:
            marked[number] = 1
        yield Part(T2D, "BOOL", (vocab,), bytes(marked))
