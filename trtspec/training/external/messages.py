# SPDX-License-Identifier: Apache-2.0
"""Rows as messages, for trainers that tokenize text themselves.

A row's text is split in two messages, which the chat template joins again. A row whose text would have different
tokens, which can happen to sampled rows, is skipped.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.core.errors import TrtspecError
from trtspec.training.external.rows import write_lines
from trtspec.training.texts import TrainingText

AS_THEY_ARE = (
    "{%- for message in messages -%}"
    "{%- if message['role'] == 'assistant' -%}{%- generation -%}{{- message['content'] -}}{%- endgeneration -%}"
    "{%- else -%}{{- message['content'] -}}{%- endif -%}"
    "{%- endfor -%}"
)


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
