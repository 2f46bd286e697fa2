# SPDX-License-Identifier: Apache-2.0
"""Prompts on JSON lines: `{"prompt": "...", "id": "...", "kind": "..."}` each; only `prompt` is required."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from trtspec.errors import TrtspecError
from trtspec.files import read_bounded, unreadable

MAX_BYTES = 64 << 20
HINT = 'a prompt file has one JSON object a line: {"prompt": "some text"}'
MAX_PROMPTS = 100_000


@dataclass(frozen=True)
class Prompt:
    """One prompt; `kind` groups prompts in reports, `name` is its id or its line number."""

    text: str
    name: str
    kind: str


def load_prompts(path: Path) -> list[Prompt]:
    """Read prompts; raises TrtspecError with the line of the first that is none, or if there are none."""
    try:
        lines = read_bounded(path, MAX_BYTES).decode().split("\n")
    except OSError as error:
        raise TrtspecError(unreadable(error), where=str(path), hint=HINT) from None
    except UnicodeDecodeError:
        raise TrtspecError("not UTF-8", where=str(path), hint=HINT) from None
    prompts = [_parse(path, number, line) for number, line in enumerate(lines, 1) if line.strip()]
    if not 0 < len(prompts) <= MAX_PROMPTS:
        raise TrtspecError(f"{len(prompts)} prompts, expected 1 to {MAX_PROMPTS:,}", where=str(path), hint=HINT)
    return prompts


def _parse(path: Path, number: int, line: str) -> Prompt:
    try:
        record = json.loads(line)
        text = record["prompt"]
    except (ValueError, RecursionError, KeyError, TypeError):
        text = None
    if not isinstance(text, str) or not text:
        raise TrtspecError('expected {"prompt": "some text"}', where=f"{path}:{number}")
    return Prompt(text, str(record.get("id", number)), str(record.get("kind", "")))
