# SPDX-License-Identifier: Apache-2.0
"""OpenAI's chat completions API; the server applies its chat template."""

from __future__ import annotations

from typing import Any

from trtspec.bench.load import api
from trtspec.bench.load.api import Api, Event, LoadSampling, ParsedResponse, parse_text
from trtspec.engine.prompts.prompt import Prompt

TEXTS = ("content", "reasoning_content", "reasoning")  # the last two contain reasoning on vLLM and SGLang


def _body(model: str, prompt: Prompt, wanted: LoadSampling) -> dict[str, Any]:
    messages = [*prompt.messages] or [{"role": "user", "content": prompt.text}]
    return {"model": model, "messages": messages, **api.openai_options(wanted)}


def _read(event: Event, reply: ParsedResponse) -> bool:
    return api.read_openai_event(event, reply, _choice_text)


def _choice_text(choice: Any) -> str:
    delta = choice.get("delta") or {}
    return next((parse_text(delta[name]) for name in TEXTS if delta.get(name)), "")


API = Api("/v1/chat/completions", _body, _read, ends=True)
