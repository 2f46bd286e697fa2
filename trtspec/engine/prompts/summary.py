# SPDX-License-Identifier: Apache-2.0
"""Summarizes a prompt file: the number of prompts by kind, and their lengths."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

from trtspec.engine.prompts.load import PromptFile, read_prompts, shipped_sets, with_template
from trtspec.engine.prompts.prompt import Prompt


def summarize(file: PromptFile, tokenizer: Path | None) -> dict[str, Any]:
    """Return the document of `prompts --json`; `tokenizer` is a directory whose template and tokens are used."""
    prompts = with_template(file.prompts, tokenizer, file.path) if tokenizer else file.prompts
    tokens = _tokens(prompts, tokenizer) if tokenizer else None
    kinds = sorted({prompt.kind for prompt in prompts})
    return {
        "file": str(file.path),
        "format": file.name,
        "format_title": file.format.title,
        "prompts": len(prompts),
        "left_out": file.left_out,
        "with_messages": sum(bool(prompt.messages) for prompt in prompts),
        "further_turns": sum(prompt.further_turns for prompt in prompts),
        **_lengths(prompts, tokens, range(len(prompts))),
        "kinds": [
            {"kind": kind, "prompts": len(places), **_lengths(prompts, tokens, places)}
            for kind in kinds
            for places in [[place for place, prompt in enumerate(prompts) if prompt.kind == kind]]
        ],
    }


def list_shipped() -> list[dict[str, Any]]:
    """Return the summaries of the sets shipped with trtspec."""
    return [{"name": name, **summarize(read_prompts(path), None)} for name, path in shipped_sets().items()]


def _tokens(prompts: Sequence[Prompt], tokenizer: Path) -> list[int]:
    """Return the length of each prompt in tokens."""
    from trtspec.checkpoints.tokenizer import Tokenizer

    encode = Tokenizer(tokenizer).encode
    return [len(encode(prompt.text)) for prompt in prompts]


def _lengths(prompts: Sequence[Prompt], tokens: Sequence[int] | None, places: Sequence[int]) -> dict[str, Any]:
    return {
        "characters": _spread([len(prompts[place].text) for place in places]),
        "tokens": _spread([tokens[place] for place in places]) if tokens is not None else None,
    }


def _spread(lengths: Sequence[int]) -> dict[str, int]:
    return {"min": min(lengths), "median": round(median(lengths)), "max": max(lengths), "total": sum(lengths)}
