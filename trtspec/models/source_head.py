# SPDX-License-Identifier: Apache-2.0
"""A draft head's source, read for the target that the head is stored with."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtspec.checkpoint.rules import Matched, Rule, find_parts, match
from trtspec.checkpoint.sharding import ParallelMapping, uneven
from trtspec.checkpoint.source import Source, load_source
from trtspec.diagnostics import Diagnostic
from trtspec.errors import CheckpointError
from trtspec.methods.base import DraftHead, HeadTarget, find_method
from trtspec.models.source_model import SourceModel

FEWER = "set target.parallel.tensor to a number that divides it"


@dataclass(frozen=True)
class SourceHead:
    """A complete draft head, for the target it was read for; `matched` includes the borrowed tensors."""

    source: Source
    head: DraftHead
    matched: Matched

    @property
    def rules(self) -> list[Rule]:
        """Return the rules of all tensors that it adds to the target's checkpoint."""
        return [*self.head.rules, *self.head.borrowed]

    def diagnose(self, mapping: ParallelMapping) -> list[Diagnostic]:
        """Report how the head fits its target and the target's ranks."""
        fits = [each.below("speculation.draft") for each in self.head.diagnostics]
        return fits + [
            Diagnostic("target.parallel", "parallel", message, FEWER) for message in uneven(self.rules, mapping)
        ]

    def check(self, mapping: ParallelMapping) -> None:
        """Raise CheckpointError if the head does not fit its target or cannot be divided like this."""
        errors = [each.message for each in self.diagnose(mapping) if each.severity == "error"]
        if errors:
            raise CheckpointError("; ".join(errors), where=str(self.source.root))


def read_head(
    source: Source, method: str, options: dict[str, Any], target: SourceModel, draft_len: int | None = None
) -> SourceHead:
    """Read a draft head from its source; raises CheckpointError for an incomplete one.

    `draft_len` is the recipe's; None for the method's default.
    """
    drafting = find_method(method)
    if drafting.read_head is None:
        raise CheckpointError(f"{method} drafts with no head of its own", where=str(source.root))
    parsed = drafting.parse(options)
    shape = drafting.draft_shape(parsed, drafting.default_draft_len if draft_len is None else draft_len)
    head = drafting.read_head(source, HeadTarget(target.config, target.rules, shape.max_depth), parsed)
    matched = match(head.rules, head.skips, source)
    borrowed = find_parts(head.borrowed, target.source)
    return SourceHead(source, head, Matched(matched.sources | borrowed, matched.skipped))


def load_head(
    root: Path, method: str, options: dict[str, Any], target: SourceModel, draft_len: int | None = None
) -> SourceHead:
    """Read the draft head at `root` for a target; raises CheckpointError like `read_head`."""
    return read_head(load_source(root), method, options, target, draft_len)
