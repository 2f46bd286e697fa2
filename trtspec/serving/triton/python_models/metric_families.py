# SPDX-License-Identifier: Apache-2.0
"""The metrics exported by served models, grouped by what an engine reports. Values only, no Triton."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["counter", "gauge", "histogram"]

# Bucket bounds in seconds, from the time of a step to the patience of a user.
WAITS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
TOKEN_TIMES = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
TEXT_TIMES = (0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)

FALLBACK_REASONS = ("failed", "open", "refused")
FINISH_REASONS = ("length", "end_id", "stop", "cancelled", "refused", "error")


@dataclass(frozen=True)
class MetricSpec:
    """One metric; it has the labels `model` and `method`, and optionally one more, `label`.

    `known` are values of that label whose counters start at 0; the first increment of any other is invisible to rates.
    """

    name: str
    kind: Kind
    unit: str
    description: str
    label: str = ""
    known: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()

    @property
    def labels(self) -> tuple[str, ...]:
        return ("model", "method", *([self.label] if self.label else []))


REQUESTS = MetricSpec(
    "trtspec_requests_total",
    "counter",
    "requests",
    "Finished requests by reason",
    "finish_reason",
    FINISH_REASONS,
)
PROMPT_TOKENS = MetricSpec("trtspec_prompt_tokens_total", "counter", "tokens", "Prompt tokens of the started requests")
GENERATED_TOKENS = MetricSpec("trtspec_generated_tokens_total", "counter", "tokens", "Generated tokens")
TTFT = MetricSpec(
    "trtspec_time_to_first_token_seconds",
    "histogram",
    "seconds",
    "Time from a request's arrival in the model to its first token",
    buckets=WAITS,
)
TPOT = MetricSpec(
    "trtspec_time_per_output_token_seconds",
    "histogram",
    "seconds",
    "Mean time per token of a request after its first tokens",
    buckets=TOKEN_TIMES,
)
DURATION = MetricSpec(
    "trtspec_request_duration_seconds",
    "histogram",
    "seconds",
    "Time from a request's arrival in the model to its last token",
    buckets=TEXT_TIMES,
)
RUNNING = MetricSpec("trtspec_requests_running", "gauge", "requests", "Requests in progress in the engine")
QUEUE = MetricSpec(
    "trtspec_queue_seconds",
    "histogram",
    "seconds",
    "Time from a request's arrival in the model until its engine accepts it",
    buckets=WAITS,
)
WAITING = MetricSpec("trtspec_requests_waiting", "gauge", "requests", "Requests waiting for the engine")
DRAFTED = MetricSpec(
    "trtspec_drafted_tokens_total", "counter", "tokens", "Verified draft tokens, including all nodes of a tree"
)
ACCEPTED = MetricSpec("trtspec_accepted_tokens_total", "counter", "tokens", "Accepted draft tokens")
STEPS = MetricSpec("trtspec_decode_steps_total", "counter", "steps", "Decode steps of the target, summed over requests")
BY_POSITION = MetricSpec(
    "trtspec_accepted_tokens_by_position_total",
    "counter",
    "tokens",
    "Accepted draft tokens by position in the draft (depth of a tree), from 1",
    "position",
)
FALLBACKS = MetricSpec(
    "trtspec_fallbacks_total",
    "counter",
    "calls",
    "Times that the target continued without the draft, by reason",
    "reason",
    FALLBACK_REASONS,
)
BREAKER = MetricSpec("trtspec_breaker_open", "gauge", "0 or 1", "Whether the draft is disabled because it failed")

# Metrics by what an engine reports.
OF_TEXTS = (REQUESTS, PROMPT_TOKENS, GENERATED_TOKENS, TTFT, TPOT, DURATION, RUNNING)
OF_QUEUE = (QUEUE, WAITING)
OF_DRAFTS = (DRAFTED, ACCEPTED)
OF_STEPS = (STEPS,)
OF_POSITIONS = (BY_POSITION,)
OF_FALLBACKS = (FALLBACKS, BREAKER)
FAMILIES = (*OF_TEXTS, *OF_QUEUE, *OF_DRAFTS, *OF_STEPS, *OF_POSITIONS, *OF_FALLBACKS)
