# SPDX-License-Identifier: Apache-2.0
"""Compute step times from the streams of a server's responses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trtspec.bench.load.sample import MS, RequestSample
from trtspec.bench.profile.server_counts import counts_from_sample


@dataclass(frozen=True)
class StreamTimes:
    """At one concurrency: the mean seconds of a step and to the first token, and the tokens per second."""

    step_s: float
    first_s: float
    tokens_per_s: float


def stream_times(samples: Sequence[RequestSample], batch: int, draft_len: int) -> StreamTimes:
    """Return the times of responses of two tokens or more that ran at concurrency `batch` throughout.

    The step time is the time per token after the first, multiplied by the tokens per step.
    """
    counts = [counts_from_sample(sample, draft_len) for sample in samples]
    streamed_s = sum(sample.e2e_ms - sample.ttft_ms for sample in samples) / MS
    token_s = streamed_s / sum(sample.output_tokens - 1 for sample in samples)
    step_tokens = 1 + sum(each.accepted for each in counts) / sum(each.steps for each in counts)
    whole_s = sum(sample.e2e_ms for sample in samples) / MS
    return StreamTimes(
        token_s * step_tokens,
        sum(sample.ttft_ms for sample in samples) / MS / len(samples),
        batch * sum(sample.output_tokens for sample in samples) / whole_s,
    )
