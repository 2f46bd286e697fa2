# SPDX-License-Identifier: Apache-2.0
"""Schema of the output of `profile --json`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from trtspec.report.schemas.bounds import Count, Number, Positive, Share, Text


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
