# SPDX-License-Identifier: Apache-2.0
"""Prompts of a file, whatever its format; those that are messages become text by a tokenizer's chat template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from trtspec.core.errors import TrtspecError
from trtspec.core.paths import recipes_dir
from trtspec.engine.prompts.format import Format, format_of
from trtspec.engine.prompts.messages import ChatError
from trtspec.engine.prompts.prompt import Prompt
from trtspec.engine.prompts.records import HINT, read_records

if TYPE_CHECKING:
    from trtspec.engine.prompts.chat import ChatTemplate

MAX_TEXT_BYTES = 4 << 20  # of what a template writes


@dataclass(frozen=True)
class PromptFile:
    """A file of prompts that was read, its messages in their plain form; `name` is its format's.

    `left_out` counts the records that ask nothing.
    """

    path: Path
    name: str
    format: Format
    prompts: tuple[Prompt, ...]
    left_out: int


def own_sets() -> dict[str, Path]:
    """Return the files of prompts that come with trtspec, by their names."""
    return {path.stem: path for path in sorted((recipes_dir() / "prompts").glob("*.jsonl"))}


def read_prompts(path: Path) -> PromptFile:
    """Read a file, or the set of that name that comes with trtspec; raises TrtspecError with the line that is wrong."""
    path = path if path.exists() else own_sets().get(str(path), path)
    records = read_records(path)
    name, found = format_of(records)
    prompts = tuple(prompt for record in records if (prompt := found.read(record)))
    if not prompts:
        raise TrtspecError(f"none of {len(records)} records asks something", where=str(path), hint=HINT)
    return PromptFile(path, name, found, prompts, len(records) - len(prompts))


def load_prompts(path: Path, tokenizer: Path | None = None) -> list[Prompt]:
    """Return the prompts of a file as they are sent: their messages in the words of the tokenizer's chat template.

    Without a tokenizer, or of one without a template, they keep their plain form. Raises TrtspecError where the file
    has something else, and where the template refuses messages.
    """
    prompts = list(read_prompts(path).prompts)
    return with_template(prompts, tokenizer, path) if tokenizer else prompts


def with_template(prompts: Sequence[Prompt], tokenizer: Path, path: Path) -> list[Prompt]:
    """Return prompts whose messages are text by the template of a tokenizer's directory; `path` is for errors.

    That text is `Rendered`: encoding it adds no special tokens. Whoever sends it to a server must say so too.
    """
    if not any(prompt.messages for prompt in prompts):
        return list(prompts)
    from trtspec.engine.prompts.chat import ChatTemplate

    template = ChatTemplate(tokenizer, MAX_TEXT_BYTES, children=1)
    if not template.is_there:
        return list(prompts)
    try:
        return [_templated(prompt, template, path) if prompt.messages else prompt for prompt in prompts]
    finally:
        template.close()


def _templated(prompt: Prompt, template: ChatTemplate, path: Path) -> Prompt:
    try:
        return replace(prompt, text=template.render(list(prompt.messages)))
    except ChatError as error:
        raise TrtspecError(f"prompt {prompt.name}: {error.message}", where=str(path)) from None
