# SPDX-License-Identifier: Apache-2.0
"""Schema of the output of `bench --json` with --concurrency or --rate."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from trtspec.report.schemas.bounds import Count, Millis, Number, Positive, Share, Text


class Percentiles(BaseModel):
    """A distribution in milliseconds."""

    mean: Millis
    min: Millis
    p50: Millis
    p90: Millis
    p95: Millis
    p99: Millis
    max: Millis


class LoadArm(BaseModel):
    """Results of one arm under a load."""

    requests: Count
    failed: Count
    output_tokens_per_s: Annotated[float, Field(ge=0, lt=1e12)]
    ttft_ms: Percentiles | None
    tpot_ms: Percentiles | None
    e2e_ms: Percentiles | None
    itl_ms: Percentiles | None = None
    acceptance_rate: Share | None
    mean_accepted_len: Positive | None
    goodput_share: Share | None = None


class LoadSize(BaseModel):
    """A load: `concurrency` of a closed loop, `requests_per_s` of an open one."""

    kind: Text
    concurrency: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    requests_per_s: Positive | None = None

    @property
    def name(self) -> str:
        """Return the display name."""
        return f"concurrency {self.concurrency}" if self.concurrency else f"{self.requests_per_s or 0:g}/s"


class SavedRatio(BaseModel):
    """A ratio with its confidence interval, if known."""

    ratio: Positive
    low: Number | None
    high: Number | None

    @property
    def interval(self) -> str:
        """Return the formatted interval, or "" if it is unknown."""
        return f"{self.low:.2f} to {self.high:.2f}" if self.low and self.high else ""


class LoadPoint(BaseModel):
    """A load and the results of each arm."""

    load: LoadSize
    arms: Annotated[dict[Text, LoadArm], Field(min_length=1, max_length=2)]
    speedup: SavedRatio | None
    unfit: Text | None = None


class LoadDocument(BaseModel):
    """Output of `bench --json` with --concurrency or --rate."""

    format_version: Literal[1]
    kind: Literal["load"]
    points: Annotated[list[LoadPoint], Field(min_length=1, max_length=200)]
    warnings: Annotated[list[Text], Field(max_length=1000)] = []
