# SPDX-License-Identifier: Apache-2.0
"""Description of an external trainer: the drafts it trains, its inputs and the location of its result.

Each module of `trainers/` defines one as `TRAINER`. The project's own code runs on a GPU machine, with its
configuration (`run.yaml`), its data and the commands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.core.registry import find_extension
from trtspec.recipe.schema import StrictModel
from trtspec.training.texts import TrainingText

PACKAGE, ATTRIBUTE = "trtspec.training.external.trainers", "TRAINER"
CONFIG, DRAFT, EXPORTED = "run.yaml", "draft", "exported"  # paths in a job's directory
EPOCHS, LEARNING_RATE = 3, 1e-4  # fine-tuning needs less of both than training from scratch

Count = Annotated[int, Field(ge=1, le=1 << 24)]
Name = Annotated[str, Field(min_length=1, max_length=4096)]


@dataclass(frozen=True)
class Kind:
    """A trainer's name for a kind of draft, and the dialect in which it reads and exports it."""

    name: str
    dialect: str


class TrainingJob(StrictModel):
    """A training job: a draft of `kind` for `target`, which is a directory or a hub id.

    `draft` is config.json in the trainer's dialect. `captured` are the target layers whose hidden states the draft
    reads, numbered by their inputs, out of `layers`. `longest` is the maximum row length in tokens. `maps` is True if
    the draft has its own vocabulary. `steps` is the maximum number of steps, None if only the epochs limit it.
    """

    kind: Kind
    target: Name
    layers: Count
    captured: tuple[int, ...]
    draft: dict[str, Any]
    draft_len: Count
    longest: Count = 1
    maps: bool
    learning_rate: Annotated[float, Field(gt=0, le=1)]
    steps: Count | None
    seed: int


Further = Callable[[TrainingJob, Path, Sequence[TrainingText], Tokenizer], int]


@dataclass(frozen=True)
class ExternalTrainer:
    """An external trainer.

    `kinds` are by method. `families` are the target families for which the project has trained drafts. `needs`
    describes its prerequisites. `result` is the path of the trained draft in the job's directory. `config` (run.yaml,
    without keys whose value is None) and `commands` (shell lines that use $TARGET) are generated from a job. `further`
    writes trainer-specific files to a directory that already contains the draft, and returns the number of texts it had
    to skip.
    """

    title: str
    version: str
    source: str
    kinds: Mapping[str, Kind]
    families: frozenset[str]
    needs: str
    result: str
    config: Callable[[TrainingJob], dict[str, Any]]
    commands: Callable[[TrainingJob], str]
    further: Further = lambda job, root, texts, tokenizer: 0


def find_trainer(name: str) -> ExternalTrainer:
    """Return a trainer by name; the error for an unknown name lists the known ones."""
    found: ExternalTrainer = find_extension(PACKAGE, ATTRIBUTE, name, "trainer")
    return found
