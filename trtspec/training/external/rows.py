# SPDX-License-Identifier: Apache-2.0
"""The training split as JSON lines of token ids with loss masks.

speculators and SpecForge use the same format: the mask is 1 on response tokens and 0 on prompt tokens
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
from trtspec.training.texts import HELD_OUT, TRAIN, TrainingText, pool

ROWS = "rows.jsonl"


def training_texts(texts: Sequence[TrainingText]) -> list[TrainingText]:
    """Return the training texts, with texts to keep repeated as in a local training.

    TrtspecError if no response has two tokens, because the first one is never drafted.
    """
    found = pool([text for text in texts if text.side == TRAIN and len(text.answer) > 1])
    if not found:
        raise TrtspecError(
            "the target answers no training prompt with at least two tokens", hint="use different prompts"
        )
    return found


def make_row(text: TrainingText) -> dict[str, Any]:
    """Return a text as a row."""
    return {"input_ids": list(text.tokens), "loss_mask": [0] * len(text.prompt) + [1] * len(text.answer)}


def write_lines(path: Path, records: Iterable[Any]) -> None:
    """Write records as JSON lines."""
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)


def held_out_digest(texts: Iterable[TrainingText]) -> str:
    """Return the SHA-256 of the held-out prompts' tokens, independent of order and responses."""
    prompts = sorted(text.prompt for text in texts if text.side == HELD_OUT)
    return hashlib.sha256(json.dumps(prompts).encode()).hexdigest()
