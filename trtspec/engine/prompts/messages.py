# SPDX-License-Identifier: Apache-2.0
"""Parses chat messages of OpenAI's API, and formats them as plain text for models without a chat template."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trtspec.core.errors import TrtspecError
from trtspec.engine.prompts.prompt import Message

MAX_MESSAGES = 4096
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


class ChatError(TrtspecError):
    """Invalid messages; `param` is the path of the invalid value, `code` is an error code for programs."""

    def __init__(self, message: str, param: str = "messages", code: str = "invalid_value") -> None:
        super().__init__(message)
        self.param, self.code = param, code


def read_messages(messages: Any) -> list[dict[str, Any]]:
    """Return messages in the form that templates accept: known roles and text contents; raise ChatError if invalid."""
    if not isinstance(messages, list) or not 0 < len(messages) <= MAX_MESSAGES:
        raise ChatError(f"messages must be a list of 1 to {MAX_MESSAGES} messages")
    return [_message(message, f"messages.{number}") for number, message in enumerate(messages)]


def plain_text(messages: Sequence[Message]) -> str:
    """Return messages as plain text that ends where the answer begins, for models without a chat template."""
    turns = [f"{message['role'].capitalize()}: {message['content']}\n\n" for message in messages]
    return "".join(turns) + "Assistant:"


def is_text(value: str) -> bool:
    """Return whether UTF-8 can encode a string; JSON allows unpaired surrogates."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _message(message: Any, where: str) -> dict[str, Any]:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise ChatError(f"{where} must be an object with a role", where)
    if message["role"] in ("tool", "function") or message.get("tool_calls") or message.get("function_call"):
        raise _unsupported("a message about tools", where)
    if message["role"] not in ROLES:
        raise ChatError(f"{where}.role must be one of {', '.join(ROLES)}", f"{where}.role")
    read = {"role": ROLES[message["role"]], "content": _content(message.get("content"), f"{where}.content")}
    name = message.get("name")
    if isinstance(name, str) and not is_text(name):
        raise ChatError(f"{where}.name must be text", f"{where}.name")
    return read | ({"name": name} if isinstance(name, str) else {})


def _content(content: Any, where: str) -> str:
    if isinstance(content, list) and content:
        content = "\n".join(_part(part, where) for part in content)
    if not isinstance(content, str) or not is_text(content):
        raise ChatError(f"{where} must be text or a list of text parts", where)
    return content


def _part(part: Any, where: str) -> str:
    if not isinstance(part, dict) or part.get("type") != "text":
        raise _unsupported("a part that is not text", where)
    if not isinstance(part.get("text"), str):
        raise ChatError(f"{where} has a part without text", where)
    return str(part["text"])


def _unsupported(what: str, where: str) -> ChatError:
    return ChatError(f"{what} is not supported", where, "unsupported_parameter")
