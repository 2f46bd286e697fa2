# SPDX-License-Identifier: Apache-2.0
"""trtspec's own JSON lines: `{"prompt": "..."}` or `{"messages": [...], "kind": "..."}`, with an optional id.

`response` is a model's answer; prompts with the same `document` were extracted from one text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from trtspec.engine.prompts.formats.base import PromptFormat, chat
from trtspec.engine.prompts.prompt import Prompt, PromptRecord


def _recognizes(records: Sequence[PromptRecord]) -> bool:
    first = records[0]
    return (first.has("prompt") and not first.has("task_id", "entry_point")) or first.has("messages", "kind")


def _read(record: PromptRecord) -> Prompt:
    kind, document = str(record.get("kind") or ""), str(record.get("document") or "")
    if record.has("messages") and not record.has("prompt"):
        return replace(chat(record, record.get("messages"), kind, record.name("id")), document=document)
    answer = record.get("response")
    if answer is not None and not isinstance(answer, str):
        raise record.refuse('expected {"response": "some text"}')
    return Prompt(record.text("prompt"), record.name("id"), kind, answer=answer, document=document)


FORMAT = PromptFormat("trtspec's own JSON lines", _recognizes, _read)
