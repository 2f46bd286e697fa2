# SPDX-License-Identifier: Apache-2.0
"""Request parameters and events shared by OpenAI completions and chats, with vLLM's extensions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from trtspec.bench.load.api import BadAnswer, Event, LoadSampling, ParsedResponse, parse_count

MAX_HISTOGRAM = 1024


def options(wanted: LoadSampling) -> dict[str, Any]:
    """Return the parameters of a stream that ends with its usage.

    `ignore_eos` is an extension of vLLM and trtspec. Other servers reject it, so it is sent only for `exact_len`.
    """
    sampled = {"seed": wanted.seed} if wanted.temperature else {}
    return {
        "max_tokens": wanted.max_tokens,
        "temperature": wanted.temperature,
        **sampled,
        "stream": True,
        "stream_options": {"include_usage": True},
        **({"ignore_eos": True} if wanted.exact_len else {}),
    }


def read(event: Event, reply: ParsedResponse, text_of: Callable[[Any], str]) -> bool:
    """Process one event and return whether it contained text; raise BadAnswer for an error event."""
    if error := event.get("error"):
        raise BadAnswer(f"the server reported: {error.get('message') if isinstance(error, dict) else error}")
    if usage := event.get("usage"):
        reply.prompt_tokens = parse_count(usage.get("prompt_tokens"))
        reply.output_tokens = parse_count(usage.get("completion_tokens"))
    if metrics := event.get("metrics"):
        _read_drafts(metrics.get("speculative_decoding") or {}, reply)
    choices = event.get("choices")
    if not choices:
        return False
    reply.finish_reason = str(choices[0].get("finish_reason") or reply.finish_reason)
    if text := text_of(choices[0]):
        reply.text.append(text)
    return bool(text)


def _read_drafts(drafts: Event, reply: ParsedResponse) -> None:
    """Read the counts of vLLM's `--per-request-spec-decode-metrics summary`; the trtspec gateway has the same names."""
    reply.drafted = parse_count(drafts.get("num_draft_tokens"))
    reply.accepted = parse_count(drafts.get("num_accepted_draft_tokens"))
    reply.steps = parse_count(drafts.get("num_spec_steps"))
    histogram = drafts.get("acceptance_histogram") or []
    reply.histogram = tuple(parse_count(steps) or 0 for steps in histogram[:MAX_HISTOGRAM])
