# SPDX-License-Identifier: Apache-2.0
"""The training split for an external trainer: JSON lines of token ids with loss masks, or of messages.

speculators and SpecForge use the same format of rows: the mask is 1 on response tokens and 0 on prompt tokens
(vllm-project/speculators:src/speculators/data_generation/preprocessing.py@v0.9.0,
sgl-project/SpecForge:specforge/data/prompt_builder.py@a6b6b02).

Messages are for trainers that tokenize text themselves. A row's text is split in two messages, which the chat template
joins again. A row whose text would have different tokens, which can happen to sampled rows, is skipped.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.core.errors import TrtspecError
from trtspec.training.texts import HELD_OUT, TRAIN, TrainingText, pool

ROWS = "rows.jsonl"
AS_THEY_ARE = (
    "{%- for message in messages -%}"
    "{%- if message['role'] == 'assistant' -%}{%- generation -%}{{- message['content'] -}}{%- endgeneration -%}"
    "{%- else -%}{{- message['content'] -}}{%- endif -%}"
    "{%- endfor -%}"
)


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


def write_messages(path: Path, texts: Sequence[TrainingText], tokenizer: Tokenizer) -> int:
    """Write texts as messages and return their number; TrtspecError if no text is suitable."""
    found = [pair for text in texts if (pair := pieces(text, tokenizer))]
    if not found:
        message = "no row's text tokenizes to the row's tokens, but this trainer takes text"
        raise TrtspecError(message, hint="choose another trainer")
    write_lines(path, ({"messages": _messages(*pair)} for pair in found))
    return len(found)


def pieces(text: TrainingText, tokenizer: Tokenizer) -> tuple[str, str] | None:
    """Return prompt and response as text, or None if they tokenize differently or cannot be separated."""
    whole, prompt = (tokenizer.decode_with_specials(ids) for ids in (text.tokens, text.prompt))
    if not whole.startswith(prompt) or tuple(tokenizer.encode(whole, add_special_tokens=False)) != text.tokens:
        return None
    return prompt, whole[len(prompt) :]


def _messages(prompt: str, answer: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": prompt}, {"role": "assistant", "content": answer}]
