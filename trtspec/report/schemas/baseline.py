# SPDX-License-Identifier: Apache-2.0
"""Schema of the output of `baseline --json`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from trtspec.report.schemas.bounds import Count, Millis, Positive, Text


class LatencySpread(BaseModel):
    """A distribution over all requests."""

    mean: Millis
    p50: Millis
    p95: Millis


class BaselineEngine(BaseModel):
    """Backend that ran the target; `measured_by` is "process" or "server"."""

    backend: Text
    measured_by: Text


class PromptCount(BaseModel):
    """Number of prompts."""

    count: Count


class BaselineDocument(BaseModel):
    """Output of `baseline --json`."""

    format_version: Literal[1]
    time: Text
    engine: BaselineEngine
    prompts: PromptCount
    max_tokens: Count
    runs: Count
    tokens_per_s: Annotated[list[Positive], Field(min_length=1, max_length=10_000)]
    median_tokens_per_s: Positive
    request_s: LatencySpread
    ms_per_token: LatencySpread
