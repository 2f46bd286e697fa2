# SPDX-License-Identifier: Apache-2.0
"""Triton's `generate_stream` for a text model with the tensors of NVIDIA's `inflight_batcher_llm` repository."""

from __future__ import annotations

from typing import Any

from trtspec.bench.load.api import Api, BadAnswer, Event, LoadSampling, ParsedResponse, parse_count, parse_text
from trtspec.engine.prompts.prompt import Prompt
from trtspec.serving.triton.client import with_special_tokens_flag


def _body(model: str, prompt: Prompt, wanted: LoadSampling) -> dict[str, Any]:
    # Sampling requires top_p; a temperature alone is ignored.
    sampled = {"temperature": wanted.temperature, "top_p": 1.0, "seed": wanted.seed} if wanted.temperature else {}
    ends_nowhere = {"end_id": -1} if wanted.exact_len else {}
    asked = {"text_input": prompt.text, "max_tokens": wanted.max_tokens, "stream": True, **sampled, **ends_nowhere}
    return dict(with_special_tokens_flag(asked))


def _read(event: Event, reply: ParsedResponse) -> bool:
    """Process one response, whose text is incremental and whose counts are cumulative."""
    if set(event) == {"error"}:
        raise BadAnswer(f"the server reported: {event['error']}")
    before, text = reply.output_tokens or 0, parse_text(event["text_output"])
    if text:
        reply.text.append(text)
    reply.prompt_tokens = parse_count(event.get("num_input_tokens"))
    reply.output_tokens = parse_count(event.get("num_output_tokens"))
    reply.drafted = parse_count(event.get("total_draft_tokens"))
    reply.accepted = parse_count(event.get("total_accepted_draft_tokens"))
    if reply.output_tokens is not None and reply.accepted is not None:
        # The prefill yields the first token; each step yields one token plus the accepted draft tokens.
        reply.steps = max(0, reply.output_tokens - 1 - reply.accepted)
    return bool(text) or (reply.output_tokens or 0) > before


API = Api("/v2/models/ensemble/generate_stream", _body, _read, ends=False)
