# SPDX-License-Identifier: Apache-2.0
"""Messages to one prompt, by the chat template that a tokenizer brings.

A template is code of whoever published the model: child processes render it (`trtspec.engine.prompts.rendering`) within
limits of memory, time and output. It writes what it writes in transformers' `apply_chat_template`.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trtspec.checkpoints.rendered_text import Rendered
from trtspec.checkpoints.source import MAX_CONFIG_BYTES, read_json
from trtspec.checkpoints.tokenizer_classes import special_tokens
from trtspec.core.errors import CheckpointError, TrtspecError
from trtspec.core.files import read_bounded, unreadable
from trtspec.core.sandbox import ChildPool, Limits, SandboxError
from trtspec.engine.prompts.messages import ChatError, read_messages

MAX_TEMPLATE_BYTES = 1 << 20
JINJA_HINT = "pip install 'trtspec[prompts]'"
RENDERING = "trtspec.engine.prompts.rendering"
CHILDREN = 3  # a chat that takes too long holds one of them for two seconds at most
# Of one chat: a large one takes some 20 ms and 60 MB. Wall time is what the other requests of a child may wait.
CPU_S, WALL_S, MEMORY_BYTES = 1.0, 1.6, 384 << 20
ESCAPED = 6  # bytes of JSON for one byte of text, at most


class ChatTemplate:
    """The template of a tokenizer's directory; models without chat have none.

    Raises CheckpointError for files that cannot be read. A template that cannot be compiled is a ChatError of each
    request: it has no bearing on completions.
    """

    def __init__(self, root: Path, max_bytes: int, children: int = CHILDREN) -> None:
        """Read the template, which may write `max_bytes` at most for one chat; `close` ends its child processes."""
        self._root, self._max_bytes, self._children = root, max_bytes, children
        self._source = _source(root)
        self.tokens = special_tokens(root)
        if self._source and find_spec("jinja2") is None:
            raise TrtspecError("chat templates need jinja2, which is not installed", hint=JINJA_HINT)

    @property
    def is_there(self) -> bool:
        """Return whether there is a template."""
        return bool(self._source)

    @cached_property
    def _pool(self) -> ChildPool:
        limits = Limits(MEMORY_BYTES, CPU_S, WALL_S, ESCAPED * self._max_bytes + 4096)
        prepared = {"source": self._source, "tokens": self.tokens}
        return ChildPool(self._children, limits, (f"{RENDERING}:prepare", prepared))

    def render(self, messages: Any) -> Rendered:
        """Return the prompt of `messages`, ready for the model's answer; raises ChatError."""
        argument = self._argument(messages)
        try:
            return _rendered(self._pool.ask(f"{RENDERING}:render", argument))
        except SandboxError as error:
            raise _in_words(error) from None

    async def render_async(self, messages: Any) -> Rendered:
        """Like `render`, for an event loop, which goes on meanwhile."""
        argument = self._argument(messages)
        try:
            return _rendered(await self._pool.ask_async(f"{RENDERING}:render", argument))
        except SandboxError as error:
            raise _in_words(error) from None

    def start(self) -> None:
        """Start a child now, so that the first chat does not wait for it."""
        if self._source:
            self._pool.start()

    def close(self) -> None:
        """End the child processes."""
        if "_pool" in self.__dict__:
            self._pool.close()

    def _argument(self, messages: Any) -> dict[str, Any]:
        if not self._source:
            raise ChatError("this model has no chat template", code="no_chat_template")
        return {"messages": read_messages(messages), "max_bytes": self._max_bytes}


def _rendered(answer: dict[str, str]) -> Rendered:
    if "error" in answer:
        raise ChatError(answer["error"], code=answer["code"])
    return Rendered(answer["text"])


def _in_words(error: SandboxError) -> ChatError:
    what = "cannot be used" if error.cause == "refused" else "was stopped"
    return ChatError(f"the chat template {what}: {error.message}", code="chat_template_failed")


def _source(root: Path) -> str:
    """Return the template as transformers chooses it: files of its own before a key of the tokenizer's configuration.

    Of several templates it is the one called "default".
    """
    path, more = root / "chat_template.jinja", root / "additional_chat_templates"
    if path.is_file():
        return _text(path)
    if (more / "default.jinja").is_file():
        return _text(more / "default.jinja")
    template, where = _config(root).get("chat_template"), str(root / "tokenizer_config.json")
    if isinstance(template, list):
        entries = [entry for entry in template if isinstance(entry, dict)]
        if len(entries) != len(template) or not all(isinstance(entry.get("name"), str) for entry in entries):
            raise CheckpointError("chat_template is a list whose items are not all named templates", where=where)
        template = {entry["name"]: entry.get("template") for entry in entries}
    if isinstance(template, dict):
        template = template.get("default")
    if template is not None and not isinstance(template, str):
        raise CheckpointError("chat_template is neither text nor a list of named templates", where=where)
    if template and len(template) > MAX_TEMPLATE_BYTES:
        raise CheckpointError(f"chat_template is larger than {MAX_TEMPLATE_BYTES:,} bytes", where=where)
    return template or ""


def _text(path: Path) -> str:
    try:
        return read_bounded(path, MAX_TEMPLATE_BYTES).decode()
    except UnicodeDecodeError:
        raise CheckpointError("the chat template is not UTF-8", where=str(path)) from None
    except OSError as error:
        raise CheckpointError(unreadable(error), where=str(path)) from None


def _config(root: Path) -> Mapping[str, Any]:
    path = root / "tokenizer_config.json"
    return read_json(path, MAX_CONFIG_BYTES) if path.is_file() else {}
