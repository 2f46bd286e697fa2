# SPDX-License-Identifier: Apache-2.0
"""ShareGPT: conversations; the prompt is the system message and the first user message."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtspec.engine.prompts.formats.base import PromptFormat, chat, first_has
from trtspec.engine.prompts.prompt import CHAT, Prompt, PromptRecord

PEOPLE = ("human", "user")
SYSTEM = "system"


def _read(record: PromptRecord) -> Prompt | None:
    turns = record.get("conversations")
    if not isinstance(turns, list) or not all(isinstance(turn, dict) for turn in turns):
        raise record.refuse('expected {"conversations": [{"from": "human", "value": "some text"}, ...]}')
    if record.get("tools") not in (None, "", "[]", []):  # the prompt depends on the tools, which are not supported
        return None
    parsed = [_parse_turn(turn) for turn in turns]
    user_turns = [number for number, (speaker, _) in enumerate(parsed) if speaker in PEOPLE]
    # long conversations are published in parts, some of which have only a model's turns
    if not user_turns or not parsed[user_turns[0]][1]:
        return None
    system = [text for speaker, text in parsed[: user_turns[0]] if speaker == SYSTEM and text]
    default = record.get(SYSTEM)
    if not system and isinstance(default, str) and default:
        system = [default]
    messages = [{"role": SYSTEM, "content": text} for text in system]
    messages.append({"role": "user", "content": parsed[user_turns[0]][1]})
    return chat(record, messages, CHAT, record.name("id"), len(user_turns) - 1)


def _parse_turn(turn: Mapping[str, Any]) -> tuple[str, str]:
    """Return (speaker, text) of a turn; some files use OpenAI's names for both keys."""
    speaker, text = turn.get("from", turn.get("role")), turn.get("value", turn.get("content"))
    return str(speaker or ""), str(text or "")


FORMAT = PromptFormat("ShareGPT", first_has("conversations"), _read)
