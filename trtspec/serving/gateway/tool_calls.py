# SPDX-License-Identifier: Apache-2.0
"""Tool calls in streamed text: the formats of the model families, and the parser that separates calls from content.

A format's text has JSON objects with the name and the arguments of a function, between or after markers. The parser
returns a call when its object is complete. Text in the form of a call is content if it is not valid JSON or if the
request does not have the function.
"""

from __future__ import annotations

import json
import re
import secrets
import string
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from trtspec.engine.generation.text import begun_length

ALPHANUMERIC = string.ascii_letters + string.digits
SEPARATORS = re.compile(r"[\s\[\],;]*")
STRUCTURE = re.compile(r'["\\{}]')


@dataclass(frozen=True)
class ToolFormat:
    """How a model family writes tool calls.

    Attributes:
        begin, end: markers before and after calls; `end` may be "".
        opening: the beginning of a text that is a call without the marker; "" if the marker is required.
        arguments: the key of a call's arguments.
        signs: texts of which a chat template of this format has one.
        others: texts that only templates of other formats have.
        id_length: length of the ids of calls, for templates that require one; 0 for OpenAI's ids.
    """

    name: str
    begin: str
    end: str = ""
    opening: str = ""
    arguments: str = "arguments"
    signs: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    id_length: int = 0

    @property
    def markers(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.begin, self.end)))

    def recognizes(self, template: str) -> bool:
        """Return whether a chat template renders calls in this format."""
        return any(sign in template for sign in self.signs) and not any(other in template for other in self.others)

    def new_id(self) -> str:
        """Return a random id for a call."""
        length = self.id_length or 24
        return ("" if self.id_length else "call_") + "".join(secrets.choice(ALPHANUMERIC) for _ in range(length))


HERMES = ToolFormat("hermes", "<tool_call>", "</tool_call>", signs=("<tool_call>",), others=("<function=", "<arg_key>"))
LLAMA3_JSON = ToolFormat(
    "llama3_json", "<|python_tag|>", opening="{", arguments="parameters", signs=('"parameters": ', "<|python_tag|>")
)
MISTRAL = ToolFormat("mistral", "[TOOL_CALLS]", opening='[{"', signs=("[TOOL_CALLS]",), others=("[ARGS]",), id_length=9)
FORMATS = {each.name: each for each in (HERMES, MISTRAL, LLAMA3_JSON)}  # in the order of recognition


def find_format(name: str, template: str) -> ToolFormat | None:
    """Return the named format. For "", return the first format that recognizes the chat template, or None."""
    if name:
        return FORMATS[name]
    return next((each for each in FORMATS.values() if each.recognizes(template)), None)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a function; `arguments` is a JSON object as text."""

    id: str
    name: str
    arguments: str


class ToolCallParser:
    """Separates the text of one completion into content and tool calls, as it arrives.

    White space around calls is dropped. A text without calls stays the same.
    """

    def __init__(self, form: ToolFormat, names: Collection[str], *, parallel: bool, forced: bool) -> None:
        """`names` are the functions that may be called.

        Without `parallel`, the text after the first call is dropped. With `forced`, the text is a list of calls
        without markers.
        """
        self._form, self._names, self._parallel = form, names, parallel
        self._text, self._raw = "", ""  # not processed yet; the marker before it
        self._is_start, self._is_call = True, forced
        self._content, self._space, self._calls = "", "", list[ToolCall]()
        self._has_called = self._follows_call = False
        self._braces = _Braces()

    def add(self, text: str, *, last: bool) -> tuple[str, list[ToolCall]]:
        """Return the new content and the calls that are complete; `last` flushes the rest."""
        self._text += text
        while self._text and not self._is_over and (self._read_call() if self._is_call else self._read_content(last)):
            pass
        if self._is_over:
            self._text = self._space = ""
        if last and self._is_call and (self._raw or not SEPARATORS.fullmatch(self._text)):
            self._give_up(len(self._text))
        content, calls = self._content + (self._space if last else ""), self._calls
        self._content, self._calls = "", []
        return content, calls

    @property
    def _is_over(self) -> bool:
        return self._has_called and not self._parallel

    def _read_content(self, last: bool) -> bool:
        """Move content before the next call; return whether more text can be processed."""
        form = self._form
        if self._is_start and form.opening:
            begun = self._text.lstrip()
            if begun.startswith(form.opening):
                self._is_call = True
                return True
            if form.opening.startswith(begun) and not last:
                return False
        at = self._text.find(form.begin)
        if at >= 0:
            self._add_content(self._text[:at])
            self._text, self._raw = self._text[at + len(form.begin) :], form.begin
            self._is_call, self._is_start = True, False
            return True
        until = len(self._text) - (0 if last else begun_length(self._text, form.begin))
        self._is_start = self._is_start and not self._text[:until].strip()
        self._add_content(self._text[:until])
        self._text = self._text[until:]
        return False

    def _read_call(self) -> bool:
        """Move the next call if its text is complete; return whether more text can be processed."""
        skipped = SEPARATORS.match(self._text).end()  # type: ignore[union-attr]  # it matches anywhere
        rest, end = self._text[skipped:], self._form.end
        if not rest or (end.startswith(rest) and rest != end):
            return False
        if end and rest.startswith(end):
            self._text, self._raw, self._is_call = rest[len(end) :], "", False
            return True
        if not rest.startswith("{"):
            self._give_up(skipped)
            return True
        until = self._braces.end(rest)
        if until is None:
            return False
        call = self._parsed(rest[:until])
        if call is None:
            self._give_up(skipped + until)
            return True
        self._calls.append(call)
        self._has_called = self._follows_call = True
        self._text, self._raw, self._space = rest[until:], "", ""
        self._is_start, self._braces = False, _Braces()
        return True

    def _give_up(self, length: int) -> None:
        """Make the marker and the next `length` characters content, which is not searched for calls."""
        self._add_content(self._raw + self._text[:length])
        self._text, self._raw, self._braces = self._text[length:], "", _Braces()
        self._is_call = self._is_start = False

    def _add_content(self, text: str) -> None:
        """Add content, except white space at its end, which may come before a call."""
        if self._follows_call:
            text = text.lstrip()
            self._follows_call = not text
        text = self._space + text
        shown = text.rstrip()
        self._content, self._space = self._content + shown, text[len(shown) :]

    def _parsed(self, text: str) -> ToolCall | None:
        """Return the call in a JSON object, or None if the object is invalid or its function does not exist."""
        try:
            call = json.loads(text, parse_constant=_refuse)
            arguments = call.get(self._form.arguments, call.get("arguments", {}))
            if isinstance(arguments, str):
                arguments = json.loads(arguments, parse_constant=_refuse)
        except (ValueError, RecursionError):
            return None
        name = call.get("name")
        if not isinstance(name, str) or name not in self._names or not isinstance(arguments, dict):
            return None
        return ToolCall(self._form.new_id(), name, json.dumps(arguments, ensure_ascii=False))


class _Braces:
    """Finds the end of a JSON object that arrives in parts."""

    def __init__(self) -> None:
        self._at = self._depth = 0
        self._is_quoted = False

    def end(self, text: str) -> int | None:
        """Return the length of the object at the beginning of `text`, or None if the object is incomplete.

        Each call must pass the text of the previous call, extended at its end.
        """
        while (found := STRUCTURE.search(text, self._at)) is not None:
            mark, self._at = found[0], found.end()
            if mark == "\\":
                if found.end() == len(text):
                    self._at = found.start()
                    return None
                self._at += 1
            elif mark == '"':
                self._is_quoted = not self._is_quoted
            elif not self._is_quoted:
                self._depth += 1 if mark == "{" else -1
                if not self._depth:
                    return self._at
        self._at = len(text)
        return None


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")
