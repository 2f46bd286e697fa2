# SPDX-License-Identifier: Apache-2.0
"""Records an engine's drafts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trtspec.engine.drafting.base import DraftTokens
from trtspec.engine.engine import Engine


class Observed:
    """Records the drafts of an engine, each with the texts that it follows."""

    def __init__(self, engine: Engine) -> None:
        self.drafts: list[tuple[list[list[int]], DraftTokens]] = []
        self.depths: list[int] = []
        propose = engine.speculator.drafter.propose

        def noted(texts: Sequence[Sequence[int]], depth: int, *how: Any) -> DraftTokens:
            draft = propose(texts, depth, *how)
            self.depths.append(depth)
            self.drafts.append(([list(text) for text in texts], draft))
            return draft

        engine.speculator.drafter.propose = noted  # type: ignore[method-assign]
