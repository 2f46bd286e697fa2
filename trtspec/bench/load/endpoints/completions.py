# SPDX-License-Identifier: Apache-2.0
"""OpenAI's completions API; prompts are sent as plain text."""

from __future__ import annotations

from typing import Any

from trtspec.bench.load import api
from trtspec.bench.load.api import Api, Event, LoadSampling, ParsedResponse, parse_text
from trtspec.checkpoints.tokenizer import RenderedText
from trtspec.engine.prompts.prompt import Prompt


def _body(model: str, prompt: Prompt, wanted: LoadSampling) -> dict[str, Any]:
    # `add_special_tokens` is an extension of vLLM that the trtspec gateway supports too.
    has_tokens = {"add_special_tokens": False} if isinstance(prompt.text, RenderedText) else {}
    return {"model": model, "prompt": prompt.text, **has_tokens, **api.openai_options(wanted)}


def _read(event: Event, reply: ParsedResponse) -> bool:
    return api.read_openai_event(event, reply, lambda choice: parse_text(choice.get("text")))


API = Api("/v1/completions", _body, _read, ends=True)
