# SPDX-License-Identifier: Apache-2.0
"""Load prompt files of all formats, apply a tokenizer's chat template to messages, and count prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from trtspec.core.errors import TrtspecError
from trtspec.core.paths import recipes_dir
from trtspec.engine.prompts.formats.base import PromptFormat, detect_format
from trtspec.engine.prompts.prompt import HINT, ChatError, Prompt, read_records

MAX_TEXT_BYTES = 4 << 20  # maximum output of a template


@dataclass(frozen=True)
class PromptFile:
    """The contents of a prompt file, with messages in plain form; `name` is the name of its format.

    `left_out` counts the records without a question.
    """

    path: Path
    name: str
    format: PromptFormat
    prompts: tuple[Prompt, ...]
    left_out: int


def shipped_sets() -> dict[str, Path]:
    """Return the prompt files shipped with trtspec, by name."""
    return {path.stem: path for path in sorted((recipes_dir() / "prompts").glob("*.jsonl"))}


def read_prompts(path: Path) -> PromptFile:
    """Read a file or the shipped set of that name; raise TrtspecError with the first invalid record."""
    path = path if path.exists() else shipped_sets().get(str(path), path)
    records = read_records(path)
    name, found = detect_format(records)
    prompts = tuple(prompt for record in records if (prompt := found.read(record)))
    if not prompts:
        raise TrtspecError(f"none of {len(records)} records has a question", where=str(path), hint=HINT)
    return PromptFile(path, name, found, prompts, len(records) - len(prompts))


def load_prompts(path: Path, tokenizer: Path | None = None) -> list[Prompt]:
    """Load the prompts of a file as they are sent to a model, with the tokenizer's chat template applied to messages.

    Without a tokenizer or a template, messages keep their plain form. Raises TrtspecError if the file is invalid or the
    template rejects messages.
    """
    prompts = list(read_prompts(path).prompts)
    return with_template(prompts, tokenizer, path) if tokenizer else prompts


def with_template(prompts: Sequence[Prompt], tokenizer: Path, path: Path) -> list[Prompt]:
    """Return prompts whose messages are rendered with the chat template of a tokenizer's directory, if it has one.

    A rendered text is `RenderedText`: it must be encoded without adding special tokens, also when it is sent to a
    server. Raises TrtspecError, with `path`, if the template rejects messages.
    """
    if not any(prompt.messages for prompt in prompts):
        return list(prompts)
    from trtspec.engine.prompts.chat import ChatTemplate

    template = ChatTemplate(tokenizer, MAX_TEXT_BYTES, children=1)
    if not template.is_there:
        return list(prompts)
    found = []
    try:
        for prompt in prompts:
            text = template.render(list(prompt.messages)) if prompt.messages else prompt.text
            found.append(replace(prompt, text=text))
    except ChatError as error:
        raise TrtspecError(f"prompt {prompt.name}: {error.message}", where=str(path)) from None
    finally:
        template.close()
    return found


def summarize(file: PromptFile, tokenizer: Path | None) -> dict[str, Any]:
    """Return the JSON document of `trtspec datasets --json`: the numbers and lengths of the prompts by kind.

    With `tokenizer`, a directory, its chat template is applied and lengths are also counted in tokens.
    """
    prompts = with_template(file.prompts, tokenizer, file.path) if tokenizer else file.prompts
    characters, tokens = [len(prompt.text) for prompt in prompts], None
    if tokenizer:
        from trtspec.checkpoints.tokenizer import Tokenizer

        encode = Tokenizer(tokenizer).encode
        tokens = [len(encode(prompt.text)) for prompt in prompts]

    def lengths(places: Sequence[int]) -> dict[str, Any]:
        counts = {"characters": characters, "tokens": tokens}
        return {key: _spread([of[place] for place in places]) if of is not None else None for key, of in counts.items()}

    kinds = sorted({prompt.kind for prompt in prompts})
    return {
        "file": str(file.path),
        "format": file.name,
        "format_title": file.format.title,
        "prompts": len(prompts),
        "left_out": file.left_out,
        "with_messages": sum(bool(prompt.messages) for prompt in prompts),
        "further_turns": sum(prompt.further_turns for prompt in prompts),
        **lengths(range(len(prompts))),
        "kinds": [
            {"kind": kind, "prompts": len(places), **lengths(places)}
            for kind in kinds
            for places in [[place for place, prompt in enumerate(prompts) if prompt.kind == kind]]
        ],
    }


def list_shipped() -> list[dict[str, Any]]:
    return [{"name": name, **summarize(read_prompts(path), None)} for name, path in shipped_sets().items()]


def _spread(lengths: Sequence[int]) -> dict[str, int]:
    return {"min": min(lengths), "median": round(median(lengths)), "max": max(lengths), "total": sum(lengths)}
