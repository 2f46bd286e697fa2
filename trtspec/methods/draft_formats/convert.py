# SPDX-License-Identifier: Apache-2.0
"""Converts a draft to another file format (dialect): renders config.json and tensors, writes and reads them back.

Conversion fails if the dialect cannot represent a property of the draft (a fact). Tensors other than the vocabulary
maps are bit-identical copies.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trtspec.checkpoints.safetensors import TensorInfo
from trtspec.checkpoints.source import load_source
from trtspec.checkpoints.source_model import SourceModel, load_model
from trtspec.checkpoints.writer import OnBytes, Part, new_directory, write_config, write_tensors
from trtspec.methods.base import find_method
from trtspec.methods.draft_formats.base import LM_HEAD, MEDUSA, find_dialect, find_schema
from trtspec.methods.draft_formats.draft import (
    CARRIED,
    LEFT_OUT,
    SOFT,
    TARGET_NAMES,
    SourceDraft,
    dialect_names,
    have_equal_bits,
    is_quantized,
    neutral,
    read_draft,
    set_path,
    target_tensor,
)
from trtspec.methods.draft_head import drafted_ids
from trtspec.methods.eagle3 import default_aux_layers

VERIFIER = "speculators_config"
DRAFTED = "draft_vocab_size"
D2T, T2D = "d2t", "t2d"

OnProgress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class ConversionResult:
    """The converted draft, its new file format (dialect) `to`, its directory, and its tensors' number and bytes."""

    draft: SourceDraft
    to: str
    out: Path
    tensors: int
    nbytes: int

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON document printed by `--json`."""
        return {
            "kind": self.draft.kind,
            "from": self.draft.dialect,
            "to": self.to,
            "out": str(self.out),
            "tensors": self.tensors,
            "bytes": self.nbytes,
            "warnings": [each.as_dict() for each in self.draft.warnings],
        }


class RenderedDraft:
    """A draft in the file format (dialect) `to`, in memory: `config` is config.json and `parts` are the tensors.

    `target` is None if unknown. `target_name` is the target's name as written by the user. The constructor raises
    CheckpointError if the dialect cannot represent the draft.
    """

    def __init__(self, draft: SourceDraft, to: str, target: SourceModel | None, target_name: str) -> None:
        self.draft, self.to, self.target, self._target_name = draft, to, target, target_name
        self._schema = find_schema(to, draft.kind)
        self.parts = self._render_tensors()
        self.config = self._render_config()

    def write(self, out: Path, on_progress: OnProgress = lambda what, done, total: None) -> ConversionResult:
        """Write the draft to the new directory `out` atomically; raise ValueError if it reads back differently."""
        with new_directory(out) as temporary:
            write_config(temporary, self.config)
            write_tensors(temporary / self._schema.weights, self.parts, _counted(on_progress, self.parts))
            written = self._read_back(temporary)
        return ConversionResult(self.draft, self.to, out, len(written), sum(each.nbytes for each in written.values()))

    def _read_back(self, root: Path) -> dict[str, TensorInfo]:
        """Return the tensors written to `root`; raise ValueError if the draft there differs from the source draft."""
        draft, source = self.draft, load_source(root)
        again = read_draft(source, self.target)
        # the value None is unspecified; a dialect that requires EAGLE-3's default layers stores them explicitly
        changed = [fact for fact, value in draft.facts.items() if value not in (None, again.facts[fact])]
        if changed or (again.kind, again.layer) != (draft.kind, draft.layer):
            raise ValueError(f"reading the result gives another draft: {', '.join(changed) or 'layers'}")
        return source.tensors

    def _render_config(self) -> dict[str, Any]:
        draft, schema = self.draft, self._schema
        config = self._base_config()
        for key, value in {**schema.carried, **draft.carried.get(self.to, {})}.items():
            if value is not None:
                set_path(config, key, value)
        for path, value in schema.fixed.items():
            set_path(config, path, value)
        for fact, value in self._encoded_facts().items():
            set_path(config, schema.keys_by_fact[fact].path, value)
        if schema.section:
            config[schema.section] = draft.layer
        if schema.names_target and schema.names_target not in config:
            if not self._target_name:
                raise draft.refuse(f"{schema.names_target} requires the name of the target", "give --target")
            config[schema.names_target] = self._target_name
        if schema.has_speculators_config and VERIFIER not in config:
            config[VERIFIER] = self._speculators_config()
        others = {key: value for key, value in draft.carried.items() if key not in (self.to, "facts")}
        soft = draft.facts[SOFT] if SOFT not in schema.keys_by_fact and not self.target else None
        if facts := {key: value for key, value in ((SOFT, soft), (LEFT_OUT, self._omitted_tensors())) if value}:
            others["facts"] = facts
        return {**config, CARRIED: others} if others else config

    def _base_config(self) -> dict[str, Any]:
        """Return the initial config: the layers' keys, or the target's config if the draft is stored in its files."""
        if self._schema.includes_target and self.target:
            return dict(self.target.source.config)
        if self._schema.names:
            return {}
        return {"architectures": [self._schema.architecture], **({} if self._schema.section else self.draft.layer)}

    def _encoded_facts(self) -> dict[str, Any]:
        """Return the draft's properties (facts) in the dialect's encoding; raise CheckpointError if one lacks it."""
        draft, schema = self.draft, self._schema
        facts = dict(draft.facts)
        aux_key = schema.keys_by_fact.get("aux_layers")
        if self.target and aux_key and aux_key.is_needed and not facts.get("aux_layers"):
            facts["aux_layers"] = default_aux_layers(self.target.config.num_layers)
        found = {}
        for fact, value in facts.items():
            plain = neutral(fact, draft.layer)
            key = schema.keys_by_fact.get(fact)
            if fact in schema.in_tensors:
                continue
            if key is None:
                self._check_implied(fact, value, schema.implied.get(fact, plain))
            elif value is None and key.is_needed:
                message = f"{key.path} is required, but its config.json does not have it"
                raise draft.refuse(message, "give --target if it is a property of the target")
            elif value is not None and (key.always or value not in (plain, False)):
                found[fact] = key.encode(value)
        return found

    def _check_implied(self, fact: str, value: Any, implied: Any) -> None:
        """Raise CheckpointError if the dialect lacks a key for a draft property (fact) and implies another value."""
        if fact == SOFT or value == implied or (not value and not implied):
            return
        values = f"{fact} = {_format(value)}, and implies {_format(implied or False)}"
        such_as = "" if self.draft.kind == MEDUSA else ", such as speculators"
        hint = f"choose a dialect that supports it{such_as}"
        raise self.draft.refuse(f"{self._schema.architecture} has no key for {values}", hint)

    def _speculators_config(self) -> dict[str, Any]:
        """Return the section speculators_config, from which vLLM and speculators read the target's name."""
        draft, target = self.draft, self.target
        if target is None:
            raise draft.refuse("speculators_config requires the name of the target", "give --target")
        tokens = draft.facts.get("block_size", 0) - (not draft.facts.get("sample_from_anchor", False))
        return {
            "algorithm": draft.kind.replace("p_eagle", "peagle"),
            "proposal_methods": [
                {
                    "proposal_type": "greedy",
                    "speculative_tokens": tokens if tokens > 0 else find_method(draft.kind).default_draft_len,
                    "verifier_accept_k": 1,
                    "accept_tolerance": 0.0,
                }
            ],
            "default_proposal_method": "greedy",
            "verifier": {
                "name_or_path": self._target_name,
                "architectures": target.source.config.get("architectures") or [target.config.architecture],
            },
        }

    def _render_tensors(self) -> list[Part]:
        """Return the dialect's tensors, sorted by name."""
        draft, schema = self.draft, self._schema
        self._check_unsupported_tensors()
        self._check_target_tensors()
        parts = {name: Part.copy(name, tensor) for name, tensor in draft.tensors.items() if name not in (D2T, T2D)}
        for name in schema.shared:
            if name in parts and (name != LM_HEAD or not self._is_reduced):
                self._check_shared(name)
                del parts[name]
        parts |= {part.name: part for part in self._vocabulary_maps()}
        returning = [name for name in draft.left_out if self.target and name not in schema.shared]
        shared = [LM_HEAD] if draft.facts.get("shares_lm_head") and LM_HEAD not in schema.shared else []
        for name in (*schema.needs, *returning, *shared):
            if name not in parts:
                parts[name] = Part.copy(name, self._copied_from_target(name))
        rename = dialect_names(draft.facts, schema)
        found = [replace(part, name=rename(name)) for name, part in parts.items()] + self._target_parts()
        return sorted(found, key=lambda part: part.name)

    def _omitted_tensors(self) -> list[str]:
        """Return the names of tensors equal to the target's that this or an earlier conversion omitted."""
        written = {part.name for part in self.parts}
        present = {*self.draft.tensors, *self.draft.left_out}
        return [name for name in TARGET_NAMES if name in present and name not in written]

    @property
    def _is_reduced(self) -> bool:
        facts = self.draft.facts
        return DRAFTED in facts and bool(facts[DRAFTED] < self.draft.layer["vocab_size"])

    def _check_unsupported_tensors(self) -> None:
        for pattern, why in self._schema.lacks.items():
            if found := [name for name in self.draft.tensors if re.fullmatch(pattern, name)]:
                more = f" and {len(found) - 1} more" if len(found) > 1 else ""
                message = f"{self._schema.architecture} does not support {found[0]}{more}: {why}"
                raise self.draft.refuse(message, "choose another dialect")

    def _check_shared(self, name: str) -> None:
        """Raise CheckpointError unless a tensor that the dialect omits is bit-identical to the target's."""
        if self.target is None:
            message = f"has a {name}, which this dialect takes from the target"
            raise self.draft.refuse(message, "give --target to compare them")
        if not have_equal_bits(self.draft.tensors[name], target_tensor(name, self.target)):
            message = f"its {name} differs from the target's, which this dialect uses"
            raise self.draft.refuse(message, "choose a dialect that stores it")

    def _check_target_tensors(self) -> None:
        """Raise CheckpointError unless target tensors in the draft's files are bit-identical to the given target's."""
        for name, tensor in self.draft.target_tensors.items():
            if self.target is None:
                message = "is stored in a whole model, which is not converted"
                raise self.draft.refuse(message, "give --target to compare them")
            expected = self.target.source.tensors.get(name)
            if expected is None or not have_equal_bits(tensor, expected):
                raise self.draft.refuse(f"its {name} is not the target's", "give the target that it was trained with")

    def _target_parts(self) -> list[Part]:
        """Return the target's tensors if the dialect stores drafts in the target's files, otherwise an empty list."""
        if not self._schema.includes_target:
            return []
        message = "this dialect stores heads in their target's files"
        if self.target is None:
            raise self.draft.refuse(message, "give --target")
        source = self.target.source
        if is_quantized(source):
            hint = "give the target before quantization"
            raise self.draft.refuse(f"{message}, but {source.root} is quantized", hint)
        return [Part.copy(name, tensor) for name, tensor in source.tensors.items()]

    def _copied_from_target(self, name: str) -> TensorInfo:
        """Return a tensor that the dialect requires and the draft takes from its target."""
        if name not in TARGET_NAMES:
            raise self.draft.refuse(f"has no {name}, which this dialect requires", "choose another dialect")
        if self.target is None:
            raise self.draft.refuse(f"has no {name}, which this dialect requires from the target", "give --target")
        return target_tensor(name, self.target)

    def _vocabulary_maps(self) -> Iterator[Part]:
        """Yield d2t (target id minus draft id, per draft token) and t2d (per target token, true if draftable)."""
        if DRAFTED not in self.draft.facts or not (self._is_reduced or self._schema.maps_whole_vocabulary):
            return
        drafted, vocab = self.draft.facts[DRAFTED], self.draft.layer["vocab_size"]
        stored = self.draft.tensors.get(D2T)
        yield Part.copy(D2T, stored) if stored else Part(D2T, "I64", (drafted,), None)
        if self._schema.has_t2d:
            marked = bytearray(vocab)
            for number in drafted_ids(stored) if stored else range(drafted):
                marked[number] = 1
            yield Part(T2D, "BOOL", (vocab,), bytes(marked))


def render_draft(
    source: Path, to: str, target: str = "", drop: frozenset[str] = frozenset(), named: str = ""
) -> RenderedDraft:
    """Render the draft in `source` in the file format `to`; `target` is the directory of its target, or "".

    `drop` are keys of config.json to ignore. `named` is the target's name for formats that store it, by default
    `target`. Raise TrtspecError if the draft is inconsistent or the format cannot represent it.
    """
    find_dialect(to)
    model = load_model(Path(target), "auto") if target else None
    return RenderedDraft(read_draft(load_source(source), model, drop), to, model, named or target)


def convert_draft(
    source: Path,
    to: str,
    out: Path,
    target: str = "",
    drop: frozenset[str] = frozenset(),
    on_progress: OnProgress = lambda what, done, total: None,
) -> ConversionResult:
    """Convert the draft in `source` to the format `to` in a new directory; raise TrtspecError like `render_draft`."""
    return render_draft(source, to, target, drop).write(out, on_progress)


def _format(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _counted(on_progress: OnProgress, parts: list[Part]) -> OnBytes:
    done, total = 0, sum(part.nbytes for part in parts)

    def on_bytes(count: int) -> None:
        nonlocal done
        done += count
        on_progress("convert", done, total)

    return on_bytes
