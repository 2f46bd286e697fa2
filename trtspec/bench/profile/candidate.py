# SPDX-License-Identifier: Apache-2.0
"""What may draft for a target, and the texts that it is measured on."""

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
class Texts:
    """Prompts that the target answered with two tokens or more, its greedy answers, and the prompts' kinds."""

    prompts: tuple[Tokens, ...]
    said: tuple[Tokens, ...]
    kinds: tuple[str, ...]

    @property
    def tokens(self) -> int:
        """Return how many tokens were said."""
        return sum(map(len, self.said))


@dataclass(frozen=True)
class Candidate:
    """What may draft: a method with its options, the recipe's section of its draft (None without one), its artifact.

    `takes_draft_len` tells whether a recipe says how much it drafts; else its options do. Options and `draft_len` are
    tried whatever the artifact was built with; 0 stands for its own length.
    """

    method: str
    source: dict[str, Any] | None
    options: dict[str, Any]
    takes_draft_len: bool
    root: Path
    draft_len: int = 0

    @property
    def draft(self) -> str | None:
        """Return the draft as it was named."""
        return self.source["model"] if self.source else None

    @property
    def name(self) -> str:
        """Return what people call it."""
        return f"{self.method} ({self.draft})" if self.draft else self.method

    @property
    def settings(self) -> str:
        """Return what it drafts with, in words; two candidates of one artifact differ in it."""
        length = {"draft_len": self.draft_len} if self.draft_len else {}
        return ", ".join(f"{key} {_short(value)}" for key, value in (length | self.options).items()) or "defaults"

    @cached_property
    def manifest(self) -> Manifest:
        """Return the artifact's manifest as if it had been built with these options."""
        found = load_manifest(self.root)
        changes: dict[str, Any] = {"options": self.options} | ({"draft_len": self.draft_len} if self.draft_len else {})
        speculation = found.recipe.speculation.model_copy(update=changes)
        return found.model_copy(update={"recipe": found.recipe.model_copy(update={"speculation": speculation})})


def _short(value: Any) -> str:
    return f"of {len(value)}" if isinstance(value, list) else value if isinstance(value, str) else json.dumps(value)
