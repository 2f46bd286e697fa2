# SPDX-License-Identifier: Apache-2.0
"""Schemas of saved documents, limited to the fields of reports; values out of bounds are rejected."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

Text = Annotated[str, Field(max_length=2000)]
Share = Annotated[float, Field(ge=0, le=1)]
Number = Annotated[float, Field(gt=-1e12, lt=1e12)]
Positive = Annotated[float, Field(gt=0, lt=1e12)]
Count = Annotated[int, Field(ge=0, lt=10**12)]
Millis = Annotated[float, Field(ge=0, lt=1e12)]


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


class Arm(BaseModel):
    """One side of a benchmark."""

    tokens_per_s: Annotated[list[Positive], Field(max_length=10_000)]
    median_tokens_per_s: Positive
    acceptance_rate: Share
    mean_accepted_len: Positive


class BenchSchema(BaseModel):
    """Output of `bench --json`."""

    format_version: Literal[1]
    prompts: Count
    max_tokens: Count
    baseline: Arm
    speculative: Arm
    speedup: Positive
    speedup_interval: tuple[Number, Number]
    identical_texts: Count


class BuiltStep(BaseModel):
    """A build step and its duration."""

    name: Text
    status: Text
    seconds: Annotated[float, Field(ge=0, lt=1e9)]


class BuildDocument(BaseModel):
    """Output of `build --json`."""

    format_version: Literal[1]
    steps: Annotated[list[BuiltStep], Field(max_length=10_000)]
    seconds: Annotated[float, Field(ge=0, lt=1e9)]


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


class PredictedBatch(BaseModel):
    """Predicted speed-ups of one batch size, by acceptance rate."""

    batch: Annotated[int, Field(ge=1, le=100_000)]
    tokens_per_s: Positive
    speedup: Annotated[dict[Text, Positive], Field(max_length=10)]


class Predicted(BaseModel):
    """Prediction of a plan; `batches` is empty if `why_not` is set."""

    why_not: Text
    gpu: Text = ""
    gpus: Count = 0
    draft_len: Count = 0
    batches: Annotated[list[PredictedBatch], Field(max_length=64)] = []


class PlanSchema(BaseModel):
    """Output of `plan --json`."""

    format_version: Literal[1]
    name: Text
    predicted: Predicted | None


class MeanLengths(BaseModel):
    """Mean accepted lengths as [mean, low, high]."""

    token_weighted: tuple[Number, Number, Number]
    request_weighted: tuple[Number, Number, Number]


class KindStats(BaseModel):
    """The acceptance of one kind of prompt."""

    kind: Text
    prompts: Count
    acceptance_rate: Share
    mean_accepted_len: MeanLengths
    by_position: Annotated[list[Share], Field(max_length=64)] = []


class BatchSpeedup(BaseModel):
    """Expected speed-up at a batch size and draft length."""

    batch: Annotated[int, Field(ge=1, le=100_000)]
    draft_len: Count
    speedup: Positive
    interval: tuple[Number, Number]


class ProfiledCandidate(BaseModel):
    """A profiled method or draft."""

    method: Text
    draft: Text | None
    draft_len: Count
    acceptance_rate: Share
    mean_accepted_len: MeanLengths
    by_position: Annotated[list[Share], Field(max_length=64)]
    by_kind: Annotated[list[KindStats], Field(max_length=1000)]
    verdict: Text
    best: Annotated[list[BatchSpeedup], Field(max_length=64)]
    speedups: Annotated[list[BatchSpeedup], Field(max_length=10_000)]

    @property
    def name(self) -> str:
        """Return the display name."""
        return f"{self.method} ({self.draft})" if self.draft else self.method


class Recommended(BaseModel):
    """Recommendation of a profile."""

    method: Text
    draft_len: Count
    why: Text


class ProfileDocument(BaseModel):
    """Output of `profile --json`."""

    format_version: Literal[1]
    name: Text
    prompts: Count
    tokens: Count
    methods: Annotated[list[ProfiledCandidate], Field(max_length=100)]
    recommendation: Recommended


class DraftAcceptance(BaseModel):
    """The acceptance of a draft on held-out prompts."""

    mean_accepted_len: Positive
    interval: tuple[Number, Number]
    acceptance_rate: Share


class KindAcceptance(BaseModel):
    """The acceptance for one kind of prompt before and after training."""

    kind: Text
    prompts: Count
    before: DraftAcceptance
    after: DraftAcceptance
    verdict: Text


class TrainDocument(BaseModel):
    """Output of `train --json`."""

    format_version: Literal[1]
    published: bool
    refusals: Annotated[list[Text], Field(max_length=1000)]
    before: DraftAcceptance
    after: DraftAcceptance
    kinds: Annotated[list[KindAcceptance], Field(max_length=1000)]
