# SPDX-License-Identifier: Apache-2.0
"""The candidates of a profile and the texts they are measured on."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from trtspec.store.manifest import Manifest, load_manifest

OnProgress = Callable[[str, int, int], None]
Tokens = tuple[int, ...]


@dataclass(frozen=True)
class SampleTexts:
    """Prompts with at least two response tokens, the target's greedy responses, and the prompts' categories."""

    prompts: tuple[Tokens, ...]
    said: tuple[Tokens, ...]
    kinds: tuple[str, ...]

    @property
    def tokens(self) -> int:
        """Return the number of response tokens."""
        return sum(map(len, self.said))


@dataclass(frozen=True)
class ProfileCandidate:
    """A candidate: a method with options, the recipe's draft section (None without a draft), and the built artifact.

    `takes_draft_len` is whether the recipe sets the draft length, instead of the method's options. Options and
    `draft_len` replace those the artifact was built with; a `draft_len` of 0 keeps the artifact's.
    """

    method: str
    source: dict[str, Any] | None
    options: dict[str, Any]
    takes_draft_len: bool
    root: Path
    draft_len: int = 0

    @property
    def draft(self) -> str | None:
        """Return the draft's name or path."""
        return self.source["model"] if self.source else None

    @property
    def name(self) -> str:
        """Return the display name."""
        return f"{self.method} ({self.draft})" if self.draft else self.method

    @property
    def settings(self) -> str:
        """Return a label of draft length and options that is unique among candidates of one artifact."""
        length = {"draft_len": self.draft_len} if self.draft_len else {}
        return ", ".join(f"{key} {_short(value)}" for key, value in (length | self.options).items()) or "defaults"

    @cached_property
    def manifest(self) -> Manifest:
        """Return the artifact's manifest with the candidate's options."""
        found = load_manifest(self.root)
        changes: dict[str, Any] = {"options": self.options} | ({"draft_len": self.draft_len} if self.draft_len else {})
        speculation = found.recipe.speculation.model_copy(update=changes)
        return found.model_copy(update={"recipe": found.recipe.model_copy(update={"speculation": speculation})})


def _short(value: Any) -> str:
    return (
        f"({len(value)} entries)" if isinstance(value, list) else value if isinstance(value, str) else json.dumps(value)
    )
