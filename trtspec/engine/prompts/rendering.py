# SPDX-License-Identifier: Apache-2.0
"""Render a chat template in a child process, because a template is untrusted code from the model's publisher.

The sandbox, its extensions, filters and globals are the same as in transformers 5 (utils/chat_template_utils.py), so
that the output is the same. `trtspec.engine.prompts.chat` is the parent process.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from trtspec.core.errors import TrtspecError

_prepared: list[tuple[jinja2.Template, jinja2.Template, dict[str, str]]] = []


def prepare(argument: dict[str, Any], data: bytes) -> None:
    """Compile {"source", "source_for_tools", "tokens": special tokens} for calls of `render` in this process.

    Without `source_for_tools`, requests with tools have the same template.
    """
    template = _compiled(argument["source"])
    other = argument.get("source_for_tools", argument["source"])
    with_tools = template if other == argument["source"] else _compiled(other)
    _prepared[:] = [(template, with_tools, argument["tokens"])]


def render(argument: dict[str, Any], data: bytes) -> dict[str, str]:
    """Render {"messages", "max_bytes"} and optional "tools"; return {"text": prompt} or {"error": reason, "code"}."""
    without_tools, with_tools, tokens = _prepared[0]
    tools = argument.get("tools")
    template = with_tools if tools else without_tools
    size, pieces = 0, []
    try:
        for piece in template.generate(
            messages=argument["messages"], tools=tools, documents=None, add_generation_prompt=True, **tokens
        ):
            size += len(piece)
            if size > argument["max_bytes"]:
                return {"error": "the messages are longer than any prompt", "code": "context_length_exceeded"}
            pieces.append(piece)
        text = "".join(pieces)
        text.encode()
    except UnicodeEncodeError:
        return _refused("its output has an unpaired surrogate")
    except (MemoryError, RecursionError):
        raise
    except Exception as error:  # the template can raise any exception
        words = str(error).strip() or type(error).__name__
        return _refused(words[:500])
    return {"text": text}


def _refused(reason: str) -> dict[str, str]:
    return {"error": f"the chat template rejects these messages: {reason}", "code": "invalid_value"}


class _Generation(Extension):
    """Template tag `{% generation %}`, which marks answers for training; it does not change the text."""

    tags = {"generation"}  # noqa: RUF012  as jinja2 declares it

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_marked"), [], [], body).set_lineno(line)

    def _marked(self, caller: Any) -> str:
        return str(caller())


class _Dict:
    """Template global `dict`, without the attributes of Python's class."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict.fromkeys(*args, **kwargs)


class _Namespace(jinja2.utils.Namespace):
    """Template global `namespace`, without attributes that begin with an underscore."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        attributes = dict(*args[1:], **kwargs)
        for name in attributes:
            _check_name(name)
        jinja2.utils.Namespace.__init__(args[0], attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise SecurityError(f"a namespace cannot have the attribute {name!r}")


def _compiled(source: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _tojson
    environment.globals |= {
        "raise_exception": _raise,
        "strftime_now": lambda form: datetime.now().strftime(form),
        "dict": _Dict(),
        "namespace": _Namespace,
    }
    try:
        return environment.from_string(source)
    except (MemoryError, RecursionError):
        raise
    except Exception as error:  # Python's compiler rejects input that jinja's parser accepts, as a break outside a loop
        raise TrtspecError(str(error).strip().splitlines()[0][:500]) from None


def _tojson(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise(message: object) -> NoReturn:
    raise jinja2.exceptions.TemplateError(str(message))
