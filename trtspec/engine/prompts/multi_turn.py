# SPDX-License-Identifier: Apache-2.0
"""The record format of MT-bench, Spec-Bench and SPEED-Bench: a question with an id, a category and turns."""

from __future__ import annotations

from collections.abc import Sequence

from trtspec.engine.prompts.format import first_turn_prompt
from trtspec.engine.prompts.prompt import Prompt, PromptRecord, kind_for_category

SPEC_BENCH_CATEGORIES = {"translation", "summarization", "qa", "math_reasoning", "rag"}


def has_turns(records: Sequence[PromptRecord]) -> bool:
    """Return whether a file has this record format."""
    return records[0].has("question_id", "category", "turns")


def is_speed_bench(records: Sequence[PromptRecord]) -> bool:
    """Return whether a file is from SPEED-Bench, whose records name the source of their text."""
    return any(records[0].has(key) for key in ("src_id", "sub_category", "multiturn"))


def is_spec_bench(records: Sequence[PromptRecord]) -> bool:
    """Return whether a file is Spec-Bench or a part of it, by categories that MT-bench does not have."""
    return any(str(record.get("category")) in SPEC_BENCH_CATEGORIES for record in records)


def read_turns(record: PromptRecord) -> Prompt:
    """Return the first turn of a question."""
    turns = record.texts("turns")
    return first_turn_prompt(record, turns, kind_for_category(record.get("category")), record.name("question_id"))
