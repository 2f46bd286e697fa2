# SPDX-License-Identifier: Apache-2.0
"""Render chat messages to a prompt with a tokenizer's chat template.

A template is untrusted code from the model's publisher. Child processes render it (`trtspec.engine.prompts.rendering`)
with limits of memory, time and output. The result equals transformers' `apply_chat_template`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from trtspec.checkpoints.source import MAX_CONFIG_BYTES, read_json
from trtspec.checkpoints.tokenizer import RenderedText
from trtspec.checkpoints.tokenizer_classes import special_tokens
from trtspec.core.errors import CheckpointError, TrtspecError
from trtspec.core.files import describe_read_error, read_bounded
from trtspec.core.sandbox import SandboxError, SandboxLimits, SandboxPool
from trtspec.engine.prompts.prompt import ChatError, read_messages

MAX_TEMPLATE_BYTES = 1 << 20
JINJA_HINT = "pip install 'trtspec[prompts]'"
RENDERING = "trtspec.engine.prompts.rendering"
CHILDREN = 3  # a slow chat occupies one of them for at most two seconds
# Limits of one chat; a large one takes some 20 ms and 60 MB. WALL_S bounds the delay of other requests of the child.
CPU_S, WALL_S, MEMORY_BYTES = 1.0, 1.6, 384 << 20
ESCAPED = 6  # the maximum bytes of JSON for one byte of text


class ChatTemplate:
    """The chat template of a tokenizer's directory, which may lack one (`is_there`).

    Raises CheckpointError if a file cannot be read. A template that does not compile raises ChatError for each chat
    request, because completions work without it.
    """

    def __init__(self, root: Path, max_bytes: int, children: int = CHILDREN) -> None:
        """Read the template, whose output is limited to `max_bytes` per chat; `close` stops its child processes."""
        self._root, self._max_bytes, self._children = root, max_bytes, children
        self._source, self.source_for_tools = _source(root), _source(root, "tool_use")
        self.tokens = special_tokens(root)
        if self._source and find_spec("jinja2") is None:
            raise TrtspecError("chat templates need jinja2, which is not installed", hint=JINJA_HINT)

    @property
    def is_there(self) -> bool:
        return bool(self._source)

    @cached_property
    def _pool(self) -> SandboxPool:
        limits = SandboxLimits(MEMORY_BYTES, CPU_S, WALL_S, ESCAPED * self._max_bytes + 4096)
        prepared = {"source": self._source, "source_for_tools": self.source_for_tools, "tokens": self.tokens}
        return SandboxPool(self._children, limits, (f"{RENDERING}:prepare", prepared))

    def render(self, messages: Any, tools: Sequence[Mapping[str, Any]] | None = None) -> RenderedText:
        """Return the prompt of `messages` with the generation prompt; raise ChatError if rendering fails.

        `tools` are functions in OpenAI's format, which the template describes to the model.
        """
        argument = self._argument(messages, tools)
        with _chat_errors():
            return _rendered(self._pool.ask(f"{RENDERING}:render", argument))

    async def render_async(self, messages: Any, tools: Sequence[Mapping[str, Any]] | None = None) -> RenderedText:
        """Render as `render` does, without blocking the event loop."""
        argument = self._argument(messages, tools)
        with _chat_errors():
            return _rendered(await self._pool.ask_async(f"{RENDERING}:render", argument))

    def start(self) -> None:
        """Start a child process, so that the first chat does not wait for it."""
        if self._source:
            self._pool.start()

    def close(self) -> None:
        if "_pool" in self.__dict__:
            self._pool.close()

    def _argument(self, messages: Any, tools: Sequence[Mapping[str, Any]] | None) -> dict[str, Any]:
        if not self._source:
            raise ChatError("this model has no chat template", code="no_chat_template")
        read = read_messages(messages, with_tools=True)
        return {"messages": read, "tools": tools or None, "max_bytes": self._max_bytes}


def _rendered(reply: dict[str, str]) -> RenderedText:
    if "error" in reply:
        raise ChatError(reply["error"], code=reply["code"])
    return RenderedText(reply["text"])


@contextmanager
def _chat_errors() -> Iterator[None]:
    """Raise a failure of the child process as ChatError."""
    try:
        yield
    except SandboxError as error:
        what = "cannot be used" if error.cause == "refused" else "was stopped"
        raise ChatError(f"the chat template {what}: {error.message}", code="chat_template_failed") from None


def _source(root: Path, name: str = "default") -> str:
    """Return the template that transformers would choose, or "".

    Template files precede tokenizer_config.json. If there are several templates, it is the one called `name`, otherwise
    the one named "default". Raises CheckpointError if a file cannot be read.
    """
    path, more = root / "chat_template.jinja", root / "additional_chat_templates"
    if name != "default" and (more / f"{name}.jinja").is_file():
        return _text(more / f"{name}.jinja")
    if path.is_file():
        return _text(path)
    if (more / "default.jinja").is_file():
        return _text(more / "default.jinja")
    path = root / "tokenizer_config.json"
    config: Mapping[str, Any] = read_json(path, MAX_CONFIG_BYTES) if path.is_file() else {}
    template, where = config.get("chat_template"), str(path)
    if isinstance(template, list):
        entries = [entry for entry in template if isinstance(entry, dict)]
        if len(entries) != len(template) or not all(isinstance(entry.get("name"), str) for entry in entries):
            raise CheckpointError("chat_template is a list whose items are not all named templates", where=where)
        template = {entry["name"]: entry.get("template") for entry in entries}
    if isinstance(template, dict):
        template = template.get(name, template.get("default"))
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
        raise CheckpointError(describe_read_error(error), where=str(path)) from None
