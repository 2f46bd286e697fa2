# SPDX-License-Identifier: Apache-2.0
"""Plain text: one prompt per line."""

from __future__ import annotations

from collections.abc import Sequence

from trtspec.engine.prompts.format import Format
from trtspec.engine.prompts.prompt import Prompt, Record


def _recognizes(records: Sequence[Record]) -> bool:
    return isinstance(records[0].value, str)


def _read(record: Record) -> Prompt:
    if not isinstance(record.value, str) or not record.value:
        raise record.refuse("expected a non-empty text, as in the first record")
    return Prompt(record.value, str(record.number), "")


FORMAT = Format("plain text, a prompt a line", _recognizes, _read)
