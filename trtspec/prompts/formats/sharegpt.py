# SPDX-License-Identifier: Apache-2.0
"""ShareGPT: a JSON list of conversations, of which the first thing that somebody said is the prompt."""

from __future__ import annotations

from collections.abc import Sequence

from trtspec.prompts.format import Format, asked
from trtspec.prompts.prompt import CHAT, Prompt, Record

PEOPLE = ("human", "user")


def _recognizes(records: Sequence[Record]) -> bool:
    return records[0].has("conversations")


def _read(record: Record) -> Prompt | None:
    said = record.get("conversations")
    if not isinstance(said, list) or not all(isinstance(turn, dict) for turn in said):
        raise record.refuse('expected {"conversations": [{"from": "human", "value": "some text"}, ...]}')
    turns = [str(turn.get("value") or "") for turn in said if turn.get("from") in PEOPLE]
    # long conversations are published in parts, some of which are a model's words alone
    return asked(record, turns, CHAT, record.name("id")) if turns and turns[0] else None


FORMAT = Format("ShareGPT", _recognizes, _read)
