# SPDX-License-Identifier: Apache-2.0
"""Interface of the text generation APIs that load tests support, and the parts that OpenAI's APIs share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trtspec.core.errors import DeployError
from trtspec.core.registry import find_extension
from trtspec.engine.prompts.prompt import Prompt

PACKAGE, ATTRIBUTE = "trtspec.bench.load.endpoints", "API"
MOST = 10**12  # maximum plausible count in a server's response
Event = Mapping[str, Any]
MAX_HISTOGRAM = 1024


class BadAnswer(DeployError):
    """A server's response is an error or violates its API."""


@dataclass(frozen=True)
class LoadSampling:
    """Generation parameters of a load test; a temperature of 0 means greedy decoding.

    With `exact_len`, each response has `max_tokens` tokens, regardless of stop conditions.
    """

    max_tokens: int
    temperature: float = 0.0
    seed: int = 0
    exact_len: bool = False


@dataclass
class ParsedResponse:
    """The response received so far; counts that the server does not report are None.

    `histogram[j]` is the number of steps that accepted exactly j draft tokens.
    """

    text: list[str] = field(default_factory=list)
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    steps: int | None = None
    histogram: tuple[int, ...] = ()
    finish_reason: str = ""


@dataclass(frozen=True)
class Api:
    """A text generation API: the attribute `API` of a module in `endpoints/`, or of an installed extension.

    `body` builds a request from the model's name, the prompt and the parameters. `read` processes one stream event; it
    returns True if the event contained text and raises BadAnswer for an error event. If `ends` is set, a stream without
    a final event is incomplete. `without_drafts` are request fields that make a trtspec server run the target alone.
    """

    path: str
    body: Callable[[str, Prompt, LoadSampling], dict[str, Any]]
    read: Callable[[Event, ParsedResponse], bool]
    ends: bool
    without_drafts: Mapping[str, Any] = field(default_factory=lambda: {"num_draft_tokens": 0})


def find_api(name: str) -> Api:
    """Return an API by name; raises TrtspecError with the known names if it is unknown."""
    api: Api = find_extension(PACKAGE, ATTRIBUTE, name, "API")
    return api


def parse_count(value: Any) -> int | None:
    """Return a count from a server's response, or None if it is not an integer from 0 to MOST."""
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST else None


def parse_text(value: Any) -> str:
    """Return a string from a server's response, or "" for null; raises TypeError for other types."""
    if value is not None and not isinstance(value, str):
        raise TypeError("not a text")
    return value or ""


def openai_options(wanted: LoadSampling) -> dict[str, Any]:
    """Return the parameters of a streaming request to an OpenAI API, with token usage in its last event.

    `ignore_eos` is an extension of vLLM and trtspec. Other servers reject it, so it is sent only for `exact_len`.
    """
    return {
        "max_tokens": wanted.max_tokens,
        "temperature": wanted.temperature,
        **({"seed": wanted.seed} if wanted.temperature else {}),
        "stream": True,
        "stream_options": {"include_usage": True},
        **({"ignore_eos": True} if wanted.exact_len else {}),
    }


def read_openai_event(event: Event, reply: ParsedResponse, text_of: Callable[[Any], str]) -> bool:
    """Process one event of an OpenAI stream; return True if it contained text, raise BadAnswer for an error event."""
    if error := event.get("error"):
        raise BadAnswer(f"the server reported: {error.get('message') if isinstance(error, dict) else error}")
    if usage := event.get("usage"):
        reply.prompt_tokens = parse_count(usage.get("prompt_tokens"))
        reply.output_tokens = parse_count(usage.get("completion_tokens"))
    if metrics := event.get("metrics"):  # from vLLM's --per-request-spec-decode-metrics summary, or the trtspec gateway
        drafts = metrics.get("speculative_decoding") or {}
        reply.drafted = parse_count(drafts.get("num_draft_tokens"))
        reply.accepted = parse_count(drafts.get("num_accepted_draft_tokens"))
        reply.steps = parse_count(drafts.get("num_spec_steps"))
        histogram = drafts.get("acceptance_histogram") or []
        reply.histogram = tuple(parse_count(steps) or 0 for steps in histogram[:MAX_HISTOGRAM])
    choices = event.get("choices")
    if not choices:
        return False
    reply.finish_reason = str(choices[0].get("finish_reason") or reply.finish_reason)
    if text := text_of(choices[0]):
        reply.text.append(text)
    return bool(text)
