# SPDX-License-Identifier: Apache-2.0
"""GSM8K: word problems; their answers are ignored."""

from __future__ import annotations

from trtspec.engine.prompts.format import PromptFormat, first_has, first_turn_prompt
from trtspec.engine.prompts.prompt import MATH, Prompt, PromptRecord


def _read(record: PromptRecord) -> Prompt:
    return first_turn_prompt(record, [record.text("question")], MATH, str(record.number))


FORMAT = PromptFormat("GSM8K", first_has("question", "answer"), _read)
