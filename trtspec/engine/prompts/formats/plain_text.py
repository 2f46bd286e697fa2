# SPDX-License-Identifier: Apache-2.0
"""Plain text: one prompt per line."""

from __future__ import annotations

from trtspec.engine.prompts.formats.base import PromptFormat
from trtspec.engine.prompts.prompt import Prompt, PromptRecord


def _read(record: PromptRecord) -> Prompt:
    if not isinstance(record.value, str) or not record.value:
        raise record.refuse("expected a non-empty text, as in the first record")
    return Prompt(record.value, str(record.number), "")


FORMAT = PromptFormat("plain text, a prompt a line", lambda records: isinstance(records[0].value, str), _read)
