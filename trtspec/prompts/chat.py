# SPDX-License-Identifier: Apache-2.0
"""Messages to one prompt, by the chat template that a tokenizer brings.

A template is code of whoever published the model: it runs in jinja2's sandbox, and what it writes and computes is
bounded. What it can use is what transformers gives to it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from trtspec.checkpoint.source import MAX_CONFIG_BYTES, read_json
from trtspec.errors import CheckpointError
from trtspec.prompts.messages import ChatError, read_messages

MAX_TEMPLATE_BYTES = 1 << 20
TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")


class _Generation(Extension):
    """`{% generation %}`, by which training marks answers; it changes no text."""

    tags = {"generation"}  # noqa: RUF012  as jinja2 declares it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class _Sandbox(ImmutableSandboxedEnvironment):
    """The sandbox, without products and powers that take memory or time out of proportion."""

    intercepted_binops = frozenset({"*", "**"})

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        plain = isinstance(left, (int, float)) and isinstance(right, (int, float))
        if not plain or max(abs(left), abs(right)) > 1 << 20 or (operator == "**" and abs(right) > 64):
            raise SecurityError("a product of this size")
        return super().call_binop(context, operator, left, right)


class ChatTemplate:
    """The template of a tokenizer's directory; models without chat have none."""

    def __init__(self, root: Path) -> None:
        self.tokens = _special_tokens(root)
        source = _source(root)
        try:
            self._template = _environment().from_string(source) if source else None
        except TemplateError as error:
            raise CheckpointError(f"the chat template cannot be read: {error}", where=str(root)) from None

    @property
    def is_there(self) -> bool:
        """Tell whether there is a template."""
        return self._template is not None

    def without_begin(self, text: str) -> str:
        """Return a prompt without its begin token, for a tokenizer that writes one by itself."""
        return text.removeprefix(self.tokens.get("bos_token", ""))

    def render(self, messages: Any, max_bytes: int) -> str:
        """Return the prompt of `messages`, of at most so many bytes, ready for the model's answer; raises ChatError."""
        if self._template is None:
            raise ChatError("this model has no chat template", code="no_chat_template")
        read = read_messages(messages)
        size, pieces = 0, []
        try:
            for piece in self._template.generate(messages=read, add_generation_prompt=True, **self.tokens):
                size += len(piece)
                if size > max_bytes:
                    raise ChatError("the messages are longer than any prompt", code="context_length_exceeded")
                pieces.append(piece)
        except (TemplateError, TypeError, ValueError, ArithmeticError, LookupError, AttributeError) as error:
            raise ChatError(f"the chat template refuses these messages: {error}") from None
        return "".join(pieces)


def _environment() -> _Sandbox:
    environment = _Sandbox(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"], autoescape=False
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(str(form)[:64])
    return environment


def _tojson(value: Any, indent: int | None = None, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: object) -> None:
    raise TemplateError(str(message))


def _source(root: Path) -> str:
    """Return the template: a file of its own, or a key of the tokenizer's configuration."""
    if (path := root / "chat_template.jinja").is_file():
        if path.stat().st_size > MAX_TEMPLATE_BYTES:
            raise CheckpointError(f"larger than {MAX_TEMPLATE_BYTES:,} bytes", where=str(path))
        return path.read_text(encoding="utf-8")
    template = _config(root).get("chat_template")
    if isinstance(template, list):
        named = {entry.get("name"): entry.get("template") for entry in template if isinstance(entry, dict)}
        template = named.get("default")
    return template if isinstance(template, str) else ""


def _special_tokens(root: Path) -> dict[str, str]:
    config = _config(root)
    found = {name: _token(config.get(name)) for name in TOKENS}
    return {name: token for name, token in found.items() if token is not None}


def _token(value: Any) -> str | None:
    content = value.get("content") if isinstance(value, Mapping) else value
    return content if isinstance(content, str) else None


def _config(root: Path) -> Mapping[str, Any]:
    path = root / "tokenizer_config.json"
    return read_json(path, MAX_CONFIG_BYTES) if path.is_file() else {}
