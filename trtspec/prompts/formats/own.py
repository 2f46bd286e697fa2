# SPDX-License-Identifier: Apache-2.0
"""Our own JSON lines: `{"prompt": "..."}` or `{"messages": [...], "kind": "..."}` each, with an id where wanted."""

from __future__ import annotations

from collections.abc import Sequence

from trtspec.prompts.format import Format, chat
from trtspec.prompts.prompt import Prompt, Record


def _recognizes(records: Sequence[Record]) -> bool:
    first = records[0]
    return (first.has("prompt") and not first.has("task_id", "entry_point")) or first.has("messages", "kind")


def _read(record: Record) -> Prompt:
    kind = str(record.get("kind") or "")
    if record.has("messages") and not record.has("prompt"):
        return chat(record, record.get("messages"), kind, record.name("id"))
    return Prompt(record.text("prompt"), record.name("id"), kind)


FORMAT = Format("trtspec's own JSON lines", _recognizes, _read)
