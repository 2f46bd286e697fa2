# SPDX-License-Identifier: Apache-2.0
"""GSM8K: word problems; their answers are ignored."""

from __future__ import annotations

from collections.abc import Sequence

from trtspec.engine.prompts.format import Format, asked
from trtspec.engine.prompts.prompt import MATH, Prompt, Record


def _recognizes(records: Sequence[Record]) -> bool:
    return records[0].has("question", "answer")


def _read(record: Record) -> Prompt:
    return asked(record, [record.text("question")], MATH, str(record.number))


FORMAT = Format("GSM8K", _recognizes, _read)
