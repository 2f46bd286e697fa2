# SPDX-License-Identifier: Apache-2.0
"""OpenAI chat messages, one object per line: fine-tuning files, and batch requests with the messages in `body`."""

from __future__ import annotations

from collections.abc import Sequence

from trtspec.engine.prompts.formats.base import PromptFormat, chat
from trtspec.engine.prompts.prompt import Prompt, PromptRecord, kind_for_category


def _recognizes(records: Sequence[PromptRecord]) -> bool:
    first = records[0]
    return (first.has("messages") and not first.has("kind")) or first.has("custom_id", "body")


def _read(record: PromptRecord) -> Prompt:
    body = record.get("body")
    messages = body.get("messages") if isinstance(body, dict) else record.get("messages")
    name = record.name("custom_id" if record.has("custom_id") else "id")
    return chat(record, messages, kind_for_category(record.get("category")), name)


FORMAT = PromptFormat("OpenAI's chat messages", _recognizes, _read)
