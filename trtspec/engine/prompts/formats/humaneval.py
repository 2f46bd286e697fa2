# SPDX-License-Identifier: Apache-2.0
"""HumanEval: one beginning of a Python file per line, for the model to continue."""

from __future__ import annotations

from collections.abc import Sequence

from trtspec.engine.prompts.format import PromptFormat
from trtspec.engine.prompts.prompt import CODE, Prompt, PromptRecord


def _recognizes(records: Sequence[PromptRecord]) -> bool:
    return records[0].has("task_id", "prompt", "entry_point")


def _read(record: PromptRecord) -> Prompt:
    return Prompt(record.text("prompt"), record.name("task_id"), CODE)


FORMAT = PromptFormat("HumanEval", _recognizes, _read)
