# SPDX-License-Identifier: Apache-2.0
"""Interface of prompt formats, detection of a file's format, and helpers that formats share.

MT-bench, Spec-Bench and SPEED-Bench have one record format: a question with an id, a category and turns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trtspec.core.registry import discover, discover_all
from trtspec.engine.prompts.prompt import (
    CHAT,
    HINT,
    MULTI_TURN,
    ChatError,
    Prompt,
    PromptRecord,
    kind_for_category,
    plain_text,
    read_messages,
)

PACKAGE, ATTRIBUTE = "trtspec.engine.prompts.formats", "FORMAT"
SPEC_BENCH_CATEGORIES = {"translation", "summarization", "qa", "math_reasoning", "rag"}


@dataclass(frozen=True)
class PromptFormat:
    """A prompt format, registered as `FORMAT` of a module in `formats/` or by a package's entry point.

    `recognizes` gets all records of a file (at least one) and must be true for at most one format. `read` converts a
    record to a prompt, or to None if it lacks a question; it raises TrtspecError with the record's position if the
    record is invalid. `columns` are keys of a record in addition to `prompt.KEYS`; other columns of a parquet file are
    not read.
    """

    title: str
    recognizes: Callable[[Sequence[PromptRecord]], bool]
    read: Callable[[PromptRecord], Prompt | None]
    columns: tuple[str, ...] = ()


def first_has(*keys: str) -> Callable[[Sequence[PromptRecord]], bool]:
    """Return a `recognizes` function for files whose first record has all these keys."""
    return lambda records: records[0].has(*keys)


def detect_format(records: Sequence[PromptRecord]) -> tuple[str, PromptFormat]:
    """Return (name, format) of a file; raise TrtspecError with the keys of the first record if none matches."""
    formats: dict[str, PromptFormat] = {}
    for look in (discover, discover_all):
        formats = look(PACKAGE, ATTRIBUTE)
        for name, found in formats.items():
            if found.recognizes(records):
                return name, found
    first = records[0]
    known = ", ".join(found.title for found in formats.values())
    keys = ", ".join(map(repr, list(first.value)[:8])) if isinstance(first.value, dict) else ""
    what = f"an object with {keys}" if keys else "unknown prompt format"
    raise first.refuse(f"{what}; expected prompts in one of: {known}", HINT)


def first_turn_prompt(record: PromptRecord, turns: Sequence[str], kind: str, name: str) -> Prompt:
    """Return the first turn as a user message; the other turns depend on a model's answers and are only counted."""
    return chat(record, [{"role": "user", "content": turns[0]}], kind, name, len(turns) - 1)


def chat(record: PromptRecord, messages: object, kind: str, name: str, further_turns: int = 0) -> Prompt:
    """Return messages as a prompt, without trailing answers; raise TrtspecError if the messages are invalid.

    The first of the trailing answers becomes `Prompt.answer`. If `kind` is "", the prompt's kind is chat or multi-turn.
    """
    try:
        read = read_messages(messages)
    except ChatError as error:
        raise record.refuse(error.message) from None
    answer = None
    while read and read[-1]["role"] == "assistant":
        answer = str(read.pop()["content"])
    if not read:
        raise record.refuse("all messages are answers; expected a user message")
    kind = kind or (MULTI_TURN if any(message["role"] == "assistant" for message in read) else CHAT)
    return Prompt(plain_text(read), name, kind, tuple(read), further_turns, answer)


def question_set(records: Sequence[PromptRecord]) -> str | None:
    """Return the format module's name for a set of questions with turns, or None for other records.

    SPEED-Bench's records name the source of their text. Spec-Bench, or a part of it, has categories that MT-bench does
    not have.
    """
    if not records[0].has("question_id", "category", "turns"):
        return None
    if any(records[0].has(key) for key in ("src_id", "sub_category", "multiturn")):
        return "speed_bench"
    in_spec_bench = any(str(record.get("category")) in SPEC_BENCH_CATEGORIES for record in records)
    return "spec_bench" if in_spec_bench else "mt_bench"


def read_turns(record: PromptRecord) -> Prompt:
    """Return the first turn of a question with turns as a prompt."""
    turns = record.texts("turns")
    return first_turn_prompt(record, turns, kind_for_category(record.get("category")), record.name("question_id"))
