# SPDX-License-Identifier: Apache-2.0
"""The record format of MT-bench, Spec-Bench and SPEED-Bench: a question with an id, a category and turns."""

from __future__ import annotations

from collections.abc import Sequence

from trtspec.engine.prompts.format import asked
from trtspec.engine.prompts.prompt import Prompt, Record, kind_of

OF_SPEC_BENCH = {"translation", "summarization", "qa", "math_reasoning", "rag"}


def has_turns(records: Sequence[Record]) -> bool:
    """Return whether a file has this record format."""
    return records[0].has("question_id", "category", "turns")


def is_filled_in_later(records: Sequence[Record]) -> bool:
    """Return whether a file is from SPEED-Bench, whose records name the source of their text."""
    return any(records[0].has(key) for key in ("src_id", "sub_category", "multiturn"))


def is_of_spec_bench(records: Sequence[Record]) -> bool:
    """Return whether a file is Spec-Bench or a part of it, by categories that MT-bench does not have."""
    return any(str(record.get("category")) in OF_SPEC_BENCH for record in records)


def read_turns(record: Record) -> Prompt:
    """Return the first turn of a question."""
    turns = record.texts("turns")
    return asked(record, turns, kind_of(record.get("category")), record.name("question_id"))
