# SPDX-License-Identifier: Apache-2.0
"""The document of `profile --json`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from trtspec.report.schemas.bounds import Count, Number, Positive, Share, Text


class Means(BaseModel):
    """Mean accepted lengths as [mean, low, high]."""

    token_weighted: tuple[Number, Number, Number]
    request_weighted: tuple[Number, Number, Number]


class OfKind(BaseModel):
    """The acceptance of one kind of prompt."""

    kind: Text
    prompts: Count
    acceptance_rate: Share
    mean_accepted_len: Means
    by_position: Annotated[list[Share], Field(max_length=64)] = []


class AtBatch(BaseModel):
    """An expected speed-up."""

    batch: Annotated[int, Field(ge=1, le=100_000)]
    draft_len: Count
    speedup: Positive
    interval: tuple[Number, Number]


class Candidate(BaseModel):
    """A method that was profiled."""

    method: Text
    draft: Text | None
    draft_len: Count
    acceptance_rate: Share
    mean_accepted_len: Means
    by_position: Annotated[list[Share], Field(max_length=64)]
    by_kind: Annotated[list[OfKind], Field(max_length=1000)]
    verdict: Text
    best: Annotated[list[AtBatch], Field(max_length=64)]
    speedups: Annotated[list[AtBatch], Field(max_length=10_000)]

    @property
    def name(self) -> str:
        """Return what people call it."""
        return f"{self.method} ({self.draft})" if self.draft else self.method


class Recommended(BaseModel):
    """What a profile recommends."""

    method: Text
    draft_len: Count
    why: Text


class ProfileDocument(BaseModel):
    """The document of `profile --json`."""

    format_version: Literal[1]
    name: Text
    prompts: Count
    tokens: Count
    methods: Annotated[list[Candidate], Field(max_length=100)]
    recommendation: Recommended
