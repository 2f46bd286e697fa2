# SPDX-License-Identifier: Apache-2.0
"""ShareGPT: conversations, of which the system's words and the first thing that a person said are the prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trtspec.engine.prompts.format import Format, chat
from trtspec.engine.prompts.prompt import CHAT, Prompt, Record

PEOPLE = ("human", "user")
SYSTEM = "system"


def _recognizes(records: Sequence[Record]) -> bool:
    return records[0].has("conversations")


def _read(record: Record) -> Prompt | None:
    turns = record.get("conversations")
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise record.refuse('expected {"conversations": [{"from": "human", "value": "some text"}, ...]}')
    if record.get("tools") not in (None, "", "[]", []):  # a prompt without them would ask something else
        return None
    said = [_said(turn) for turn in turns]
    places = [place for place, (who, _) in enumerate(said) if who in PEOPLE]
    # long conversations are published in parts, some of which are a model's words alone
    if not places or not said[places[0]][1]:
        return None
    system = [text for who, text in said[: places[0]] if who == SYSTEM and text]
    own = record.get(SYSTEM)
    if not system and isinstance(own, str) and own:
        system = [own]
    messages = [{"role": SYSTEM, "content": text} for text in system]
    messages.append({"role": "user", "content": said[places[0]][1]})
    return chat(record, messages, CHAT, record.name("id"), len(places) - 1)


def _said(turn: Mapping[str, Any]) -> tuple[str, str]:
    """Return who said what in a turn; some files have OpenAI's names of both keys."""
    who, text = turn.get("from", turn.get("role")), turn.get("value", turn.get("content"))
    return str(who or ""), str(text or "")


FORMAT = Format("ShareGPT", _recognizes, _read)
