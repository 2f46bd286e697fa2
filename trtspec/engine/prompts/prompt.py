# SPDX-License-Identifier: Apache-2.0
"""Prompts: their kinds, the raw records of prompt files, and chat messages of OpenAI's API.

Messages are formatted as plain text for models without a chat template.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from trtspec.core.errors import TrtspecError

Message: TypeAlias = Mapping[str, Any]  # {"role": ..., "content": ...}, as chat templates expect

CHAT, MULTI_TURN, SUMMARIZATION, TRANSLATION = "chat", "multi-turn", "summarization", "translation"
QUESTION_ANSWERING, RAG, MATH = "question-answering", "rag", "math"
CODE, CODE_EDITING, STRUCTURED, WRITING = "code", "code-editing", "structured-output", "creative-writing"
KINDS = (CHAT, MULTI_TURN, SUMMARIZATION, TRANSLATION, QUESTION_ANSWERING, RAG, MATH, CODE, CODE_EDITING, STRUCTURED,
         WRITING)  # fmt: skip
# Categories of published sets with another name here; the others keep their names.
SAME = {"coding": CODE, "math_reasoning": MATH, "qa": QUESTION_ANSWERING, "writing": WRITING}
# The keys of a record that the formats in `formats/` read; other columns of a parquet file are not unpacked.
KEYS = ("prompt", "messages", "kind", "document", "response", "id", "category", "body", "custom_id", "task_id",
        "entry_point", "question", "answer", "question_id", "turns", "src_id", "sub_category", "multiturn",
        "conversations", "system", "tools")  # fmt: skip
MAX_MESSAGES = 4096
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


@dataclass(frozen=True)
class Prompt:
    """A prompt; `kind` groups prompts in reports, `name` is the id or the line number.

    `text` is sent to the model. For `messages` it is their plain form until a tokenizer's chat template is applied.
    `further_turns` counts the later user turns, which are not used. `answer` is a model's answer in the file or
    None. `document` identifies the text from which the prompt was extracted.
    """

    text: str
    name: str
    kind: str
    messages: tuple[Message, ...] = ()
    further_turns: int = 0
    answer: str | None = None
    document: str = ""


@dataclass(frozen=True)
class PromptRecord:
    """One record of a file: a JSON value, a row or a line of text; `where` is its file and line."""

    where: str
    number: int
    value: Any

    def has(self, *keys: str) -> bool:
        """Return whether the record is an object with all these keys."""
        return isinstance(self.value, dict) and self.value.keys() >= {*keys}

    def get(self, key: str) -> Any:
        """Return an object's value of a key, or None if the key is missing or the record is not an object."""
        return self.value.get(key) if isinstance(self.value, dict) else None

    def text(self, key: str) -> str:
        """Return a non-empty text; raise TrtspecError if it is missing."""
        found = self.get(key)
        if not isinstance(found, str) or not found:
            raise self.refuse(f'expected {{"{key}": "some text"}}')
        return found

    def texts(self, key: str) -> Sequence[str]:
        """Return a list of texts of which the first is not empty; raise TrtspecError if it is missing."""
        found = self.get(key)
        if not isinstance(found, list) or not found or not found[0] or not all(isinstance(each, str) for each in found):
            raise self.refuse(f'expected {{"{key}": ["some text", ...]}}')
        return found

    def name(self, key: str) -> str:
        """Return the id, or the record's number if the key is missing."""
        found = self.get(key)
        return str(self.number if found is None else found)

    def refuse(self, message: str, hint: str | None = None) -> TrtspecError:
        """Return the error to raise for this record."""
        return TrtspecError(message, where=self.where, hint=hint)


def kind_for_category(category: object) -> str:
    """Return the kind of a published set's category, or the category itself; "" for None."""
    name = "" if category is None else str(category)
    return SAME.get(name, name)


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
