# SPDX-License-Identifier: Apache-2.0
"""Description of an external trainer: the drafts it trains, its inputs and the location of its result.

Each module of `trainers/` defines one as `TRAINER`. The project's own code runs on a GPU machine, with its
configuration (`run.yaml`), its data and the commands.

The data are the training split, as JSON lines of token ids with loss masks, or of messages. speculators and SpecForge
use the same format of rows: the mask is 1 on response tokens and 0 on prompt tokens
(vllm-project/speculators:src/speculators/data_generation/preprocessing.py@v0.9.0,
sgl-project/SpecForge:specforge/data/prompt_builder.py@a6b6b02). Messages are for trainers that tokenize text
themselves. A row's text is split in two messages, which the chat template joins again. A row whose text would have
different tokens, which can happen to sampled rows, is skipped.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.core.errors import TrtspecError
from trtspec.core.registry import find_extension
from trtspec.recipe.schema import StrictModel
from trtspec.training.texts import HELD_OUT, TRAIN, TrainingText, pool

PACKAGE, ATTRIBUTE = "trtspec.training.external.trainers", "TRAINER"
CONFIG, DRAFT, EXPORTED = "run.yaml", "draft", "exported"  # paths in a job's directory
EPOCHS, LEARNING_RATE = 3, 1e-4  # fine-tuning needs less of both than training from scratch

Count = Annotated[int, Field(ge=1, le=1 << 24)]
Name = Annotated[str, Field(min_length=1, max_length=4096)]


@dataclass(frozen=True)
class Kind:
    """A trainer's name for a kind of draft, and the dialect in which the trainer reads and exports it."""

    name: str
    dialect: str


class TrainingJob(StrictModel):
    """Training of a draft of `kind` for `target`, which is a directory or a hub id.

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
    """An external trainer, as defined by a module of `trainers/`.

    `kinds` are by method. `families` are the target families for which the project has trained drafts. `needs`
    describes its prerequisites. `result` is the path of the trained draft in the job's directory. `config` returns the
    content of run.yaml, in which keys with the value None are omitted. `commands` returns shell lines that use $TARGET.
    `further` writes trainer-specific files to a directory that already contains the draft, and returns the number of
    texts it had to skip.
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
    """Return the trainer with this name; the error for an unknown name lists the known ones."""
    found: ExternalTrainer = find_extension(PACKAGE, ATTRIBUTE, name, "trainer")
    return found


ROWS = "rows.jsonl"
AS_THEY_ARE = (
    "{%- for message in messages -%}"
    "{%- if message['role'] == 'assistant' -%}{%- generation -%}{{- message['content'] -}}{%- endgeneration -%}"
    "{%- else -%}{{- message['content'] -}}{%- endif -%}"
    "{%- endfor -%}"
)


def training_texts(texts: Sequence[TrainingText]) -> list[TrainingText]:
    """Return the training texts, with regression texts repeated as in a local training.

    Raises TrtspecError if no response has two tokens, because the first token is never drafted.
    """
    found = pool([text for text in texts if text.side == TRAIN and len(text.answer) > 1])
    if not found:
        raise TrtspecError(
            "the target answers no training prompt with at least two tokens", hint="use different prompts"
        )
    return found


def make_row(text: TrainingText) -> dict[str, Any]:
    return {"input_ids": list(text.tokens), "loss_mask": [0] * len(text.prompt) + [1] * len(text.answer)}


def write_lines(path: Path, records: Iterable[Any]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def held_out_digest(texts: Iterable[TrainingText]) -> str:
    """Return the SHA-256 of the held-out prompts' tokens, independent of order and responses."""
    prompts = sorted(text.prompt for text in texts if text.side == HELD_OUT)
    return hashlib.sha256(json.dumps(prompts).encode()).hexdigest()


def write_messages(path: Path, texts: Sequence[TrainingText], tokenizer: Tokenizer) -> int:
    """Write texts as user and assistant messages; return their number.

    Texts for which `pieces` returns None are skipped. Raises TrtspecError if all of them are.
    """
    found = [pair for text in texts if (pair := pieces(text, tokenizer))]
    if not found:
        message = "no row's text tokenizes to the row's tokens, but this trainer takes text"
        raise TrtspecError(message, hint="choose another trainer")
    roles = ("user", "assistant")
    messages = ([{"role": role, "content": text} for role, text in zip(roles, pair, strict=True)] for pair in found)
    write_lines(path, ({"messages": each} for each in messages))
    return len(found)


def pieces(text: TrainingText, tokenizer: Tokenizer) -> tuple[str, str] | None:
    """Return prompt and response as text, or None if they tokenize differently or cannot be separated."""
    whole, prompt = (tokenizer.decode_with_specials(ids) for ids in (text.tokens, text.prompt))
    if not whole.startswith(prompt) or tuple(tokenizer.encode(whole, add_special_tokens=False)) != text.tokens:
        return None
    return prompt, whole[len(prompt) :]
