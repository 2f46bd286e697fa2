# SPDX-License-Identifier: Apache-2.0
"""The description of a format of prompts, and how the format of a file is found."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trtspec.core.registry import discover, discover_all
from trtspec.engine.prompts.messages import ChatError, plain_text, read_messages
from trtspec.engine.prompts.prompt import CHAT, MULTI_TURN, Prompt, Record
from trtspec.engine.prompts.records import HINT

PACKAGE, ATTRIBUTE = "trtspec.engine.prompts.formats", "FORMAT"


@dataclass(frozen=True)
class Format:
    """One format; a module of `formats/` joins by defining it as `FORMAT`, an installed one by an entry point.

    `recognizes` looks at all records of a file, of which there is at least one; no two formats recognize the same.
    `read` makes a prompt of a record, or None of one that asks nothing; it raises TrtspecError with the record's place
    where that is something else. `columns` are the keys of a record beside `prompt.KEYS`: other columns of a parquet
    file are not read.
    """

    title: str
    recognizes: Callable[[Sequence[Record]], bool]
    read: Callable[[Record], Prompt | None]
    columns: tuple[str, ...] = ()


def format_of(records: Sequence[Record]) -> tuple[str, Format]:
    """Return (name, format) of a file; raises TrtspecError that says what its first record has."""
    formats: dict[str, Format] = {}
    for look in (discover, discover_all):
        formats = look(PACKAGE, ATTRIBUTE)
        for name, found in formats.items():
            if found.recognizes(records):
                return name, found
    first = records[0]
    known = ", ".join(found.title for found in formats.values())
    keys = ", ".join(map(repr, list(first.value)[:8])) if isinstance(first.value, dict) else ""
    what = f"an object with {keys}" if keys else "nothing that is known"
    raise first.refuse(f"{what}; expected prompts in one of: {known}", HINT)


def asked(record: Record, turns: Sequence[str], kind: str, name: str) -> Prompt:
    """Return what a user says first, as a message; later turns answer what a model has said by then."""
    return chat(record, [{"role": "user", "content": turns[0]}], kind, name, len(turns) - 1)


def chat(record: Record, messages: object, kind: str, name: str, further_turns: int = 0) -> Prompt:
    """Return messages as a prompt, up to the last that is no answer; raises TrtspecError where they are none."""
    try:
        read = read_messages(messages)
    except ChatError as error:
        raise record.refuse(error.message) from None
    answer = None
    while read and read[-1]["role"] == "assistant":
        answer = str(read.pop()["content"])
    if not read:
        raise record.refuse("messages are answers alone; expected one of a user")
    kind = kind or (MULTI_TURN if any(message["role"] == "assistant" for message in read) else CHAT)
    return Prompt(plain_text(read), name, kind, tuple(read), further_turns, answer)
