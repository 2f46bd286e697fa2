# SPDX-License-Identifier: Apache-2.0
"""Spec-Bench: the 80 questions of MT-bench, and 80 each of translation, summarization, qa, math_reasoning and rag."""

from __future__ import annotations

from collections.abc import Sequence

from trtspec.engine.prompts.format import PromptFormat, has_turns, is_spec_bench, is_speed_bench, read_turns
from trtspec.engine.prompts.prompt import PromptRecord


def _recognizes(records: Sequence[PromptRecord]) -> bool:
    return has_turns(records) and not is_speed_bench(records) and is_spec_bench(records)


FORMAT = PromptFormat("Spec-Bench", _recognizes, read_turns)
