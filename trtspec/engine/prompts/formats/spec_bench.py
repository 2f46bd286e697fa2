# SPDX-License-Identifier: Apache-2.0
"""Spec-Bench: the 80 questions of MT-bench, and 80 each of translation, summarization, qa, math_reasoning and rag."""

from __future__ import annotations

from collections.abc import Sequence

from trtspec.engine.prompts.format import Format
from trtspec.engine.prompts.multi_turn import has_turns, is_filled_in_later, is_of_spec_bench, read_turns
from trtspec.engine.prompts.prompt import Record


def _recognizes(records: Sequence[Record]) -> bool:
    return has_turns(records) and not is_filled_in_later(records) and is_of_spec_bench(records)


FORMAT = Format("Spec-Bench", _recognizes, read_turns)
