# SPDX-License-Identifier: Apache-2.0
"""The training split as rows of token ids, each with a mask of what is learned: a JSON line each.

speculators and SpecForge read the same: a mask is 1 on the tokens of the answer and 0 on those of the prompt
(vllm-project/speculators:src/speculators/data_generation/preprocessing.py@v0.9.0,
sgl-project/SpecForge:specforge/data/prompt_builder.py@a6b6b02).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from trtspec.core.errors import TrtspecError
from trtspec.training.texts import HELD_OUT, TRAIN, Text, pool

ROWS = "rows.jsonl"


def taught(texts: Sequence[Text]) -> list[Text]:
    """Return the texts that become rows: of the training side, kept ones as often as a training here takes them.

    Raises TrtspecError where there are none with an answer of two tokens, as the first of them is never drafted.
    """
    found = pool([text for text in texts if text.side == TRAIN and len(text.answer) > 1])
    if not found:
        raise TrtspecError("the target answers no training prompt with two tokens or more", hint="give other prompts")
    return found


def row_of(text: Text) -> dict[str, Any]:
    """Return a text as a row."""
    return {"input_ids": list(text.tokens), "loss_mask": [0] * len(text.prompt) + [1] * len(text.answer)}


def write_lines(path: Path, records: Iterable[Any]) -> None:
    """Write records as JSON lines."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def held_out_digest(texts: Iterable[Text]) -> str:
    """Return the SHA-256 of the held-out prompts' tokens, whatever their order and answers."""
    prompts = sorted(text.prompt for text in texts if text.side == HELD_OUT)
    return hashlib.sha256(json.dumps(prompts).encode()).hexdigest()
