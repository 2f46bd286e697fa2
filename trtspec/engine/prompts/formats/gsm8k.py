# SPDX-License-Identifier: Apache-2.0
"""GSM8K: word problems; their answers are ignored."""

from __future__ import annotations

from trtspec.engine.prompts.formats.base import PromptFormat, first_has, first_turn_prompt
from trtspec.engine.prompts.prompt import MATH

FORMAT = PromptFormat(
    "GSM8K",
    first_has("question", "answer"),
    lambda record: first_turn_prompt(record, [record.text("question")], MATH, str(record.number)),
)
