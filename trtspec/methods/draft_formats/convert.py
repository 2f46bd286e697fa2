# SPDX-License-Identifier: Apache-2.0
"""Converts a draft to another dialect: renders config.json and tensors, writes them atomically and reads them back.

A fact that the dialect cannot represent is an error. Tensors are bit-identical copies, except the vocabulary maps.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trtspec.checkpoints.safetensors import TensorInfo
from trtspec.checkpoints.source import load_source
from trtspec.checkpoints.source_model import SourceModel, load_model
from trtspec.checkpoints.writer import OnBytes, Part, new_directory, write_config, write_tensors
from trtspec.methods.base import find_method
from trtspec.methods.draft_formats.base import LM_HEAD, DraftSchema, find_dialect, find_schema
from trtspec.methods.draft_formats.draft import KIND as MEDUSA
from trtspec.methods.draft_formats.draft import (
    RULES,
    SourceDraft,
    dialect_names,
    have_equal_bits,
    is_quantized,
    read_draft,
    target_tensor,
)
from trtspec.methods.draft_formats.facts import CARRIED, LEFT_OUT, SOFT, neutral, set_path
from trtspec.methods.draft_head import drafted_ids
from trtspec.methods.eagle3 import default_aux_layers

VERIFIER = "speculators_config"


def render_config(
    draft: SourceDraft, name: str, form: DraftSchema, target: SourceModel | None, written: str, left_out: list[str]
) -> dict[str, Any]:
    """Return config.json in the dialect `name`.

    `written` is the target as written by the user. `left_out` are omitted tensors that the target has.

    Raise CheckpointError if the dialect cannot represent a fact, or requires one that is unknown.
    """
    others = {key: value for key, value in draft.carried.items() if key not in (name, "facts")}
    config = _base_config(draft, form, target)
    for key, value in {**form.carried, **draft.carried.get(name, {})}.items():
        if value is not None:
            set_path(config, tuple(key.split(".")), value)
    for path, value in form.fixed.items():
        set_path(config, path, value)
    for fact, value in _encoded_facts(draft, form, target).items():
        set_path(config, form.key_of[fact].path, value)
    if form.section:
        config[form.section] = draft.layer
    if form.names_target and form.names_target not in config:
        if not written:
            raise draft.refuse(f"{form.names_target} requires the name of the target", "give --target")
        config[form.names_target] = written
    if form.says_verifier and VERIFIER not in config:
        config[VERIFIER] = _verifier(draft, target, written)
    soft = draft.facts[SOFT] if SOFT not in form.key_of and not target else None
    if facts := {key: value for key, value in ((SOFT, soft), (LEFT_OUT, left_out)) if value}:
        others["facts"] = facts
    return {**config, CARRIED: others} if others else config


def _base_config(draft: SourceDraft, form: DraftSchema, target: SourceModel | None) -> dict[str, Any]:
    """Return the initial config: the layers' keys, or the target's config if the draft is stored in its files."""
    if form.is_whole_model and target:
        return dict(target.source.config)
    if form.names:
        return {}
    return {"architectures": [form.architecture], **({} if form.section else draft.layer)}


def _encoded_facts(draft: SourceDraft, form: DraftSchema, target: SourceModel | None) -> dict[str, Any]:
    """Return the facts to write, in the dialect's encoding."""
    facts = dict(draft.facts)
    aux_key = form.key_of.get("aux_layers")
    if target and aux_key and aux_key.is_needed and not facts.get("aux_layers"):
        facts["aux_layers"] = default_aux_layers(target.config.num_layers)
    found = {}
    for fact, value in facts.items():
        plain = neutral(fact, draft.layer)
        key = form.key_of.get(fact)
        if fact in form.told_by_tensors:
            continue
        if key is None:
            _check_meant(draft, form, fact, value, form.means.get(fact, plain))
        elif value is None and key.is_needed:
            raise draft.refuse(f"{'.'.join(key.path)} is required, but its config.json does not have it", _GIVE)
        elif value is not None and (key.always or value not in (plain, False)):
            found[fact] = key.encode(value)
    return found


_GIVE = "give --target if it is a property of the target"


def _check_meant(draft: SourceDraft, form: DraftSchema, fact: str, value: Any, meant: Any) -> None:
    """Raise CheckpointError if a dialect without a key for a fact implies another value."""
    if fact == SOFT or value == meant or (not value and not meant):
        return
    message = f"{form.architecture} has no key for {fact} = {_format(value)}, and implies {_format(meant or False)}"
    raise draft.refuse(message, "choose a dialect that supports it" + ", such as speculators" * (draft.kind != MEDUSA))


def _format(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _verifier(draft: SourceDraft, target: SourceModel | None, written: str) -> Mapping[str, Any]:
    """Return speculators_config, from which vLLM and speculators read the target's name."""
    if target is None:
        raise draft.refuse("speculators_config requires the name of the target", "give --target")
    tokens = draft.facts.get("block_size", 0) - (not draft.facts.get("sample_from_anchor", False))
    method = find_method(draft.kind)
    return {
        "algorithm": draft.kind.replace("p_eagle", "peagle"),
        "proposal_methods": [
            {
                "proposal_type": "greedy",
                "speculative_tokens": tokens if tokens > 0 else method.default_draft_len,
                "verifier_accept_k": 1,
                "accept_tolerance": 0.0,
            }
        ],
        "default_proposal_method": "greedy",
        "verifier": {
            "name_or_path": written,
            "architectures": target.source.config.get("architectures") or [target.config.architecture],
        },
    }


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


OnProgress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class ConversionResult:
    """The result of a conversion: the draft, the dialect `to`, and the number and bytes of its tensors."""

    draft: SourceDraft
    to: str
    out: Path
    tensors: int
    nbytes: int

    def as_dict(self) -> dict[str, Any]:
        """Return the document of `--json`."""
        return {
            "kind": self.draft.kind,
            "from": self.draft.dialect,
            "to": self.to,
            "out": str(self.out),
            "tensors": self.tensors,
            "bytes": self.nbytes,
            "warnings": [each.as_dict() for each in self.draft.warnings],
        }


@dataclass(frozen=True)
class RenderedDraft:
    """A draft rendered in the dialect `to` but not written: config.json and tensors; `target` is None if unknown."""

    draft: SourceDraft
    to: str
    form: DraftSchema
    config: dict[str, Any]
    parts: list[Part]
    target: SourceModel | None

    def write(self, out: Path, on_progress: OnProgress = lambda what, done, total: None) -> ConversionResult:
        """Write the draft to `out` atomically."""
        with new_directory(out) as temporary:
            write_config(temporary, self.config)
            write_tensors(temporary / self.form.weights, self.parts, _counted(on_progress, self.parts))
            written = _read_back(temporary, self.draft, self.target)
        return ConversionResult(self.draft, self.to, out, len(written), sum(each.nbytes for each in written.values()))


def render_draft(
    source: Path, to: str, target: str = "", drop: frozenset[str] = frozenset(), named: str = ""
) -> RenderedDraft:
    """Return the draft in `source` in the dialect `to`; `target` is the directory of its target, "" for none.

    `named` is the target's name for dialects that store one, by default `target`.

    Raise TrtspecError if the draft is inconsistent or the dialect cannot represent it.
    """
    find_dialect(to)
    model = load_model(Path(target), "auto") if target else None
    draft = read_draft(load_source(source), model, drop)
    form = find_schema(to, draft.kind)
    parts = render_tensors(draft, form, model)
    config = render_config(draft, to, form, model, named or target, omitted_tensors(draft, parts))
    return RenderedDraft(draft, to, form, config, parts, model)


def convert_draft(
    source: Path,
    to: str,
    out: Path,
    target: str = "",
    drop: frozenset[str] = frozenset(),
    on_progress: OnProgress = lambda what, done, total: None,
) -> ConversionResult:
    """Write the draft in `source` to `out` in the dialect `to`; `target` is the directory of its target, "" for none.

    Raise TrtspecError before writing if the draft is inconsistent or the dialect cannot represent it.
    """
    return render_draft(source, to, target, drop).write(out, on_progress)


def _counted(on_progress: OnProgress, parts: list[Part]) -> OnBytes:
    done, total = 0, sum(part.nbytes for part in parts)

    def on_bytes(count: int) -> None:
        nonlocal done
        done += count
        on_progress("convert", done, total)

    return on_bytes


def _read_back(root: Path, draft: SourceDraft, target: SourceModel | None) -> dict[str, Any]:
    """Return the written tensors; raise ValueError if reading them gives another draft."""
    source = load_source(root)
    again = read_draft(source, target)
    # the value None is unspecified: EAGLE-3's default layers are then written explicitly if the dialect requires them
    changed = [fact for fact, value in draft.facts.items() if value not in (None, again.facts[fact])]
    if changed or (again.kind, again.layer) != (draft.kind, draft.layer):
        raise ValueError(f"reading the result gives another draft: {', '.join(changed) or 'layers'}")
    return source.tensors
