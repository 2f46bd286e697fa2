# SPDX-License-Identifier: Apache-2.0
"""Converts a draft to another dialect: renders, writes atomically and verifies by reading the result back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtspec.checkpoints.source import load_source
from trtspec.checkpoints.source_model import SourceModel, load_model
from trtspec.checkpoints.writer import OnBytes, Part, new_directory, write_config, write_tensors
from trtspec.methods.draft_formats.dialect import DraftSchema, find_dialect, find_schema
from trtspec.methods.draft_formats.draft import SourceDraft, read_draft
from trtspec.methods.draft_formats.render import render_config
from trtspec.methods.draft_formats.tensors import omitted_tensors, render_tensors

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
