# SPDX-License-Identifier: Apache-2.0
"""A tokenized prompt with its side and response; the JSON lines files between steps."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

TRAIN, VALIDATION, HELD_OUT = "train", "validation", "held-out"
TEXTS = "texts.jsonl"
KEPT_SHARE = 1 / 3  # of the training data, if there are prompts to keep


@dataclass(frozen=True)
class TrainingText:
    """Tokens of a prompt and its response; `kept` for regression prompts of `--regression-prompts`.

    `given` is True for a response from the prompt file, False for a generated one.
    """

    side: str
    kind: str
    kept: bool
    name: str
    prompt: tuple[int, ...]
    answer: tuple[int, ...] = ()
    given: bool = False

    @property
    def tokens(self) -> tuple[int, ...]:
        """Return the tokens of prompt and response."""
        return self.prompt + self.answer

    @property
    def label(self) -> str:
        """Return the label by which reports group texts."""
        return f"{self.kind or 'prompts'} (kept)" if self.kept else self.kind or "prompts"


def write_texts(path: Path, texts: Iterable[TrainingText]) -> None:
    """Write texts to a file."""
    path.write_text("".join(json.dumps(asdict(text)) + "\n" for text in texts), encoding="utf-8")


def read_texts(path: Path) -> list[TrainingText]:
    """Return the texts that `write_texts` wrote; an incomplete last line is ignored."""
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
    return [_read(json.loads(line)) for line in lines]


def _read(values: dict[str, Any]) -> TrainingText:
    return TrainingText(**values | {key: tuple(values[key]) for key in ("prompt", "answer")})


def pool(texts: Sequence[TrainingText]) -> list[TrainingText]:
    """Return the texts of an epoch; texts to keep are repeated so that they are KEPT_SHARE of it."""
    kept, new = ([text for text in texts if text.kept is kept] for kept in (True, False))
    if not kept or not new:
        return list(texts)
    times = max(1, round(KEPT_SHARE / (1 - KEPT_SHARE) * len(new) / len(kept)))
    return [*new, *kept * times]
