# SPDX-License-Identifier: Apache-2.0
"""HumanEval: the beginning of a Python file in each record, for the model to continue."""

from __future__ import annotations

from trtspec.engine.prompts.formats.base import PromptFormat, first_has
from trtspec.engine.prompts.prompt import CODE, Prompt

FORMAT = PromptFormat(
    "HumanEval",
    first_has("task_id", "prompt", "entry_point"),
    lambda record: Prompt(record.text("prompt"), record.name("task_id"), CODE),
)
