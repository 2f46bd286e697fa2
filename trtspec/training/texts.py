# SPDX-License-Identifier: Apache-2.0
"""Training settings, tokenized prompts with their sides and responses, and the JSON lines files of these texts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

Loss = Literal["kl", "greedy", "reverse_kl", "tv"]


@dataclass(frozen=True)
class TrainSettings:
    """Settings of a training.

    It ends after `steps` (0 for no limit) or `seconds`, whichever comes first; both determine the learning rate
    schedule. `lora` is the rank of the adapters, 0 to train the weights themselves. `learning_rate` is the maximum, 0
    for one derived from the draft's width and `from_scratch`.
    """

    loss: Loss
    lora: int
    learning_rate: float
    steps: int
    seconds: float
    seed: int
    from_scratch: bool = False


@dataclass(frozen=True)
class Sizes:
    """Sizes of a draft created from scratch; 0 for defaults derived from its target."""

    layers: int = 0
    hidden_size: int = 0
    draft_vocab: int = 0


NO_SIZES = Sizes()


TRAIN, VALIDATION, HELD_OUT = "train", "validation", "held-out"
TEXTS = "texts.jsonl"
KEPT_SHARE = 1 / 3  # of the training data, if there are regression prompts


@dataclass(frozen=True)
class TrainingText:
    """Tokens of a prompt and its response; `kept` is set for prompts of `--regression-prompts`.

    `side` is "train", "validation" or "held-out". `given` is True for a response from the prompt file, False for a
    generated one.
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
        return self.prompt + self.answer

    @property
    def label(self) -> str:
        return f"{self.kind or 'prompts'} (kept)" if self.kept else self.kind or "prompts"


def write_texts(path: Path, texts: Iterable[TrainingText]) -> None:
    path.write_text("".join(json.dumps(asdict(text)) + "\n" for text in texts), encoding="utf-8")


def read_texts(path: Path) -> list[TrainingText]:
    """Load the texts that `write_texts` wrote; an incomplete last line is ignored, and a missing file is empty."""
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.exists() else []
    found = [json.loads(line) for line in lines]
    return [TrainingText(**each | {key: tuple(each[key]) for key in ("prompt", "answer")}) for each in found]


def pool(texts: Sequence[TrainingText]) -> list[TrainingText]:
    """Return the texts of an epoch, with regression texts repeated to make up about KEPT_SHARE of it."""
    kept, new = ([text for text in texts if text.kept is kept] for kept in (True, False))
    if not kept or not new:
        return list(texts)
    times = max(1, round(KEPT_SHARE / (1 - KEPT_SHARE) * len(new) / len(kept)))
    return [*new, *kept * times]
