# SPDX-License-Identifier: Apache-2.0
"""The description of another project's trainer: what it trains of what, what it is given, and where its result lies.

A module of `trainers/` joins by defining it as `TRAINER`. What runs on a GPU machine is that project's own code; it is
given its configuration (`run.yaml`, by a model of its schema), its data, and the commands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.core.registry import find
from trtspec.recipe.schema import StrictModel
from trtspec.training.settings import TrainSettings
from trtspec.training.texts import Text

PACKAGE, ATTRIBUTE = "trtspec.training.external.trainers", "TRAINER"
CONFIG, DRAFT, EXPORTED = "run.yaml", "draft", "exported"  # in a job's directory
EPOCHS, LEARNING_RATE = 3, 1e-4  # a draft that is adapted needs less of both than one from scratch

Count = Annotated[int, Field(ge=1, le=1 << 24)]
Rate = Annotated[float, Field(gt=0, le=1)]
Name = Annotated[str, Field(min_length=1, max_length=4096)]
OneOfOurs = Annotated[str, Field(pattern="^(eagle3|peagle|dflash|dspark)$")]  # what several call these kinds


class Config(StrictModel):
    """A trainer's configuration, or a section of it: what we write of its schema, within bounds."""


@dataclass(frozen=True)
class Kind:
    """What a trainer calls a kind of draft, and the dialect in which it reads and exports it."""

    name: str
    dialect: str


@dataclass(frozen=True)
class Job:
    """What is to be trained: a draft of `kind` for `target`, which is a directory or a hub id.

    `draft` is config.json in the trainer's dialect. `captured` are the target's layers whose hidden states the draft
    reads, counted by their inputs, of `layers`. `longest` is the longest row, in tokens. `maps` tells whether the draft
    has a vocabulary of its own.
    """

    kind: Kind
    target: str
    layers: int
    captured: tuple[int, ...]
    draft: Mapping[str, Any]
    draft_len: int
    longest: int
    maps: bool
    settings: TrainSettings

    @property
    def steps(self) -> int | None:
        """Return after how many steps it ends, None for no limit but the epochs."""
        return self.settings.steps or None

    @property
    def learning_rate(self) -> float:
        """Return the highest learning rate."""
        return self.settings.learning_rate or LEARNING_RATE


Further = Callable[[Job, Path, Sequence[Text], Tokenizer], int]


def nothing(job: Job, root: Path, texts: Sequence[Text], tokenizer: Tokenizer) -> int:
    """Write nothing beyond configuration and rows, and leave no row out."""
    return 0


@dataclass(frozen=True)
class Trainer:
    """One trainer.

    `kinds` are by method. `families` are those of targets that the project has trained drafts for. `needs` says what
    has to be there beforehand. `result` is where in the job's directory the trained draft lies. `config` and `commands`
    (lines of a shell that knows $TARGET) are made of a job; `further` writes files that only this trainer needs below a
    directory that has the draft already, and returns how many texts it had to leave out.
    """

    title: str
    version: str
    source: str
    kinds: Mapping[str, Kind]
    families: frozenset[str]
    needs: str
    result: str
    config: Callable[[Job], Config]
    commands: Callable[[Job], str]
    further: Further = nothing


def find_trainer(name: str) -> Trainer:
    """Return a trainer by name; an unknown one is an error that lists the known ones."""
    found: Trainer = find(PACKAGE, ATTRIBUTE, name, "trainer")
    return found
