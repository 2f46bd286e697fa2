# SPDX-License-Identifier: Apache-2.0
"""Reads a draft head's source for the target with which the head is stored."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from trtspec.checkpoints.equality import have_equal_values
from trtspec.checkpoints.rules import Matched, Rule, Skip, find_parts, match
from trtspec.checkpoints.safetensors import TensorInfo
from trtspec.checkpoints.sharding import ParallelMapping, row_split_problems
from trtspec.checkpoints.source import Source, load_source
from trtspec.checkpoints.source_model import SourceModel
from trtspec.checkpoints.trtllm import LM_HEAD
from trtspec.core.diagnostics import Diagnostic
from trtspec.core.errors import CheckpointError
from trtspec.methods.base import DraftHead, HeadTarget, find_method

FEWER = "set target.parallel.tensor to a divisor of it"


@dataclass(frozen=True)
class SourceHead:
    """A complete draft head for a target; `matched` includes the tensors borrowed from the target."""

    source: Source
    head: DraftHead
    matched: Matched

    @property
    def rules(self) -> list[Rule]:
        """Return the rules of all tensors that the head adds to the target's checkpoint."""
        return [*self.head.rules, *self.head.borrowed]

    def diagnose(self, mapping: ParallelMapping) -> list[Diagnostic]:
        """Report mismatches of the head with its target and with the target's ranks."""
        fits = [each.below("speculation.draft") for each in self.head.diagnostics]
        return fits + [
            Diagnostic("target.parallel", "parallel", message, FEWER)
            for message in row_split_problems(self.rules, mapping)
        ]

    def check(self, mapping: ParallelMapping) -> None:
        """Raise CheckpointError if the head does not fit its target or cannot be sharded like this."""
        errors = [each.message for each in self.diagnose(mapping) if each.severity == "error"]
        if errors:
            raise CheckpointError(
                "; ".join(errors), where=str(self.source.root), hint="run trtspec check for a fix of each error"
            )


def read_head(
    source: Source, method: str, options: dict[str, Any], target: SourceModel, draft_len: int | None = None
) -> SourceHead:
    """Read a draft head from its source; raise CheckpointError if it is incomplete.

    `draft_len` is the recipe's draft length, None for the method's default.
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
    """Skip the head's LM head if the method drafts with the target's, and warn if the two differ."""
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
    """Read the draft head at `root` for a target; raise CheckpointError like `read_head`."""
    return read_head(load_source(root), method, options, target, draft_len)
