# SPDX-License-Identifier: Apache-2.0
"""Prompts: their kinds, the records of prompt files, and chat messages of OpenAI's API.

Messages are formatted as plain text for models without a chat template.

A file has JSON lines, a JSON list, rows of parquet or lines of text, optionally gzipped. Its type is detected from the
content, not the name; prompt formats interpret the records. Files are untrusted, so bytes, records and values are
limited before parsing.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from trtspec.checkpoints.safe_json import is_shallow, parse_object
from trtspec.core.errors import TrtspecError
from trtspec.core.files import describe_read_error, read_bounded
from trtspec.core.registry import discover_all

Message: TypeAlias = Mapping[str, Any]  # {"role": ..., "content": ...}, as chat templates expect

CHAT, MULTI_TURN, SUMMARIZATION, TRANSLATION = "chat", "multi-turn", "summarization", "translation"
QUESTION_ANSWERING, RAG, MATH = "question-answering", "rag", "math"
CODE, CODE_EDITING, STRUCTURED, WRITING = "code", "code-editing", "structured-output", "creative-writing"
KINDS = (CHAT, MULTI_TURN, SUMMARIZATION, TRANSLATION, QUESTION_ANSWERING, RAG, MATH, CODE, CODE_EDITING, STRUCTURED,
         WRITING)  # fmt: skip
# Categories of published sets that have another name in KINDS; other categories keep their names.
SAME = {"coding": CODE, "math_reasoning": MATH, "qa": QUESTION_ANSWERING, "writing": WRITING}
# The keys of a record that the formats in `formats/` read; other columns of a parquet file are not unpacked.
KEYS = ("prompt", "messages", "kind", "document", "response", "id", "category", "body", "custom_id", "task_id",
        "entry_point", "question", "answer", "question_id", "turns", "src_id", "sub_category", "multiturn",
        "conversations", "system", "tools")  # fmt: skip
MAX_MESSAGES = 4096
MAX_CALLS = 128  # of tools, in one message
ROLES = {"system": "system", "developer": "system", "user": "user", "assistant": "assistant"}


@dataclass(frozen=True)
class Prompt:
    """A prompt; `kind` groups prompts in reports, and `name` is the record's id or number.

    `text` is sent to the model. For `messages` it is their plain form until a tokenizer's chat template is applied.
    `further_turns` counts the later user turns, which are not used. `answer` is a model's answer in the file or None.
    `document` identifies the text from which the prompt was extracted.
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
    """A record of a prompt file: a JSON value, a row or a line. `where` is its position for error messages."""

    where: str
    number: int
    value: Any

    def has(self, *keys: str) -> bool:
        """Return whether the record is an object with all these keys."""
        return isinstance(self.value, dict) and self.value.keys() >= {*keys}

    def get(self, key: str) -> Any:
        """Return the value of a key, or None if the key is missing or the record is not an object."""
        return self.value.get(key) if isinstance(self.value, dict) else None

    def text(self, key: str) -> str:
        """Return the non-empty text of a key; raise TrtspecError for any other value."""
        found = self.get(key)
        if not isinstance(found, str) or not found:
            raise self.refuse(f'expected {{"{key}": "some text"}}')
        return found

    def texts(self, key: str) -> Sequence[str]:
        """Return a list of texts of which the first is not empty; raise TrtspecError for any other value."""
        found = self.get(key)
        if not isinstance(found, list) or not found or not found[0] or not all(isinstance(each, str) for each in found):
            raise self.refuse(f'expected {{"{key}": ["some text", ...]}}')
        return found

    def name(self, key: str) -> str:
        """Return the value of a key as text, or the record's number if the key is missing."""
        found = self.get(key)
        return str(self.number if found is None else found)

    def refuse(self, message: str, hint: str | None = None) -> TrtspecError:
        return TrtspecError(message, where=self.where, hint=hint)


def kind_for_category(category: object) -> str:
    """Return the kind for the category of a published set, or the category itself if unknown; "" for None."""
    name = "" if category is None else str(category)
    return SAME.get(name, name)


class ChatError(TrtspecError):
    """Raised for invalid messages; `param` is the path of the invalid value, `code` an error code for programs."""

    def __init__(self, message: str, param: str = "messages", code: str = "invalid_value") -> None:
        super().__init__(message)
        self.param, self.code = param, code


def read_messages(messages: Any, *, with_tools: bool = False) -> list[dict[str, Any]]:
    """Return messages with known roles and text contents, as templates require; raise ChatError if invalid.

    `with_tools` accepts calls of tools and their results.
    """
    if not isinstance(messages, list) or not 0 < len(messages) <= MAX_MESSAGES:
        raise ChatError(f"messages must be a list of 1 to {MAX_MESSAGES} messages")
    return [_message(message, f"messages.{number}", with_tools) for number, message in enumerate(messages)]


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


def _message(message: Any, where: str, with_tools: bool) -> dict[str, Any]:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise ChatError(f"{where} must be an object with a role", where)
    role, calls = message["role"], message.get("tool_calls")
    if role == "function" or message.get("function_call") or (not with_tools and (role == "tool" or calls)):
        raise _unsupported("a message about tools", where)
    roles = ROLES | {"tool": "tool"} if with_tools else ROLES
    if role not in roles:
        raise ChatError(f"{where}.role must be one of {', '.join(roles)}", f"{where}.role")
    content = message.get("content")
    if calls and role == "assistant" and content is None:
        content = ""
    read: dict[str, Any] = {"role": roles[role], "content": _content(content, f"{where}.content")}
    if calls:
        read["tool_calls"] = _tool_calls(calls, f"{where}.tool_calls", role)
    if role == "tool":
        read["tool_call_id"] = _text_of(message, "tool_call_id", where)
    name = message.get("name")
    if isinstance(name, str) and not is_text(name):
        raise ChatError(f"{where}.name must be text", f"{where}.name")
    return read | ({"name": name} if isinstance(name, str) else {})


def _tool_calls(calls: Any, where: str, role: str) -> list[dict[str, Any]]:
    """Return the calls of an assistant's message with arguments as objects, as chat templates expect them."""
    if role != "assistant" or not isinstance(calls, list) or len(calls) > MAX_CALLS:
        raise ChatError(f"{where} must be a list of at most {MAX_CALLS} calls of an assistant", where)
    return [_tool_call(call, f"{where}.{number}") for number, call in enumerate(calls)]


def _tool_call(call: Any, where: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) and call.get("type", "function") == "function" else None
    if not isinstance(function, dict):
        raise ChatError(f"{where} must be an object with an id, the type function and a function", where)
    text = _text_of(function, "arguments", f"{where}.function") if function.get("arguments") else "{}"
    try:
        arguments = parse_object(text.encode(), MAX_VALUES)
    except ValueError as error:
        path = f"{where}.function.arguments"
        raise ChatError(f"{path} must be the text of a JSON object: {error}", path) from None
    name = _text_of(function, "name", f"{where}.function")
    return {"id": _text_of(call, "id", where), "type": "function", "function": {"name": name, "arguments": arguments}}


def _text_of(value: Mapping[str, Any], key: str, where: str) -> str:
    found = value.get(key)
    if not isinstance(found, str) or not is_text(found):
        raise ChatError(f"{where}.{key} must be text", f"{where}.{key}")
    return found


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


MAX_BYTES = 64 << 20  # of the file, and of its unpacked content
MAX_PROMPTS = 100_000
MAX_VALUES = 100_000  # lists, objects and commas of one line
MAX_NESTED = 4_000_000  # lists and objects of a file; each uses far more memory than its bytes in the file
GZIP, PARQUET = b"\x1f\x8b", b"PAR1"
HINT = "see trtspec datasets --list for examples and docs/prompts.md for the supported formats"
PATH_HINT = "check the path; in a recipe, it is relative to the recipe's file"
PART_HINT = "use a part of the file: head -n 1000, or for a long JSON list jq '.[:1000]'"
SPACE = re.compile(r"[ \t\r\n]*")
UNPRINTABLE = re.compile(r"[\x00-\x08\x0e-\x1f]")


def read_records(path: Path) -> list[PromptRecord]:
    """Read the records of a file, at least one; raise TrtspecError with the position of the first invalid record."""
    raw = _read(path)
    records = _read_rows(path, raw) if raw.startswith(PARQUET) else _read_text(path, raw)
    if not 0 < len(records) <= MAX_PROMPTS:
        raise _wrong_number(path, len(records))
    return records


def _read(path: Path) -> bytes:
    try:
        raw = read_bounded(path, MAX_BYTES)
    except OSError as error:
        hint = PART_HINT if path.is_file() and path.stat().st_size > MAX_BYTES else HINT
        if path.is_dir() or not path.exists():
            hint = PATH_HINT
        raise TrtspecError(describe_read_error(error), where=str(path), hint=hint) from None
    return _unpacked(path, raw) if raw.startswith(GZIP) else raw


def _unpacked(path: Path, raw: bytes) -> bytes:
    unpacking = zlib.decompressobj(wbits=31)  # of gzip
    try:
        data = unpacking.decompress(raw, MAX_BYTES + 1)
    except zlib.error:
        raise TrtspecError("not a complete gzip file", where=str(path), hint=HINT) from None
    if len(data) > MAX_BYTES:
        raise TrtspecError(f"unpacks to more than {MAX_BYTES:,} bytes", where=str(path), hint=PART_HINT)
    if not unpacking.eof:
        raise TrtspecError("not a complete gzip file", where=str(path), hint=HINT)
    return data


def _read_rows(path: Path, raw: bytes) -> list[PromptRecord]:
    from trtspec.engine.prompts.parquet import read_rows

    formats = discover_all("trtspec.engine.prompts.formats", "FORMAT").values()
    columns = {*KEYS, *(name for each in formats for name in each.columns)}
    rows = read_rows(path, raw, columns, MAX_BYTES, MAX_PROMPTS, MAX_NESTED)
    return [PromptRecord(f"{path}: row {number}", number, row) for number, row in enumerate(rows, 1)]


def _read_text(path: Path, raw: bytes) -> list[PromptRecord]:
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise TrtspecError("not UTF-8", where=str(path), hint=HINT) from None
    if sum(map(text.count, "[{")) > MAX_NESTED:
        raise TrtspecError(f"more than {MAX_NESTED:,} lists and objects", where=str(path), hint=PART_HINT)
    begins = text.lstrip()[:1]
    if begins == "[":
        return list(_items(path, text))
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if len(lines) > MAX_PROMPTS:
        raise _wrong_number(path, len(lines))
    parse = _parse if begins == "{" else _line
    return [PromptRecord(where, number, parse(where, line)) for number, line in lines for where in [f"{path}:{number}"]]


def _parse(where: str, line: str) -> dict[str, Any]:
    try:
        return parse_object(line.encode(), MAX_VALUES)
    except ValueError as error:
        raise TrtspecError(str(error), where=where, hint="JSON lines have one object per line") from None


def _line(where: str, line: str) -> str:
    """Return a line of text; raise TrtspecError if it has control characters."""
    if UNPRINTABLE.search(line):
        raise TrtspecError("neither JSON nor text: it has control characters", where=where, hint=HINT)
    return line.removesuffix("\r")


def _items(path: Path, text: str) -> Iterator[PromptRecord]:
    """Yield the items of a JSON list, each with the line on which it begins."""
    decoder, line, counted = json.JSONDecoder(), 1, 0
    at, number = text.index("[") + 1, 0
    while True:
        at = SPACE.match(text, at).end()  # type: ignore[union-attr]  # it matches anywhere
        if text.startswith("]", at) and not number:
            return
        line, counted, number = line + text.count("\n", counted, at), at, number + 1
        where = f"{path}:{line}: record {number}"  # the record number is needed if the file has a single line
        if number > MAX_PROMPTS:
            raise _wrong_number(path, number)
        value, at = _item(decoder, text, at, where)
        yield PromptRecord(where, number, value)
        at = SPACE.match(text, at).end()  # type: ignore[union-attr]
        if text.startswith("]", at):
            return
        if not text.startswith(",", at):
            message = "not valid JSON: missing comma or end of the list"
            raise TrtspecError(message, where=where, hint=HINT)
        at += 1


def _item(decoder: json.JSONDecoder, text: str, at: int, where: str) -> tuple[Any, int]:
    try:
        value, end = decoder.raw_decode(text, at)
        shallow = is_shallow(value)
    except RecursionError:
        shallow = False
    except ValueError as error:
        hint = "plain text may not begin with [ or {"
        raise TrtspecError(f"not valid JSON: {getattr(error, 'msg', error)}", where=where, hint=hint) from None
    if not shallow:
        raise TrtspecError("JSON nested too deeply", where=where, hint=HINT)
    return value, end


def _wrong_number(path: Path, number: int) -> TrtspecError:
    hint = PART_HINT if number else HINT
    return TrtspecError(f"{number:,} prompts, expected 1 to {MAX_PROMPTS:,}", where=str(path), hint=hint)
