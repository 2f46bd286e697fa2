# SPDX-License-Identifier: Apache-2.0
"""The document of `plan --json`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from trtspec.report.schemas.bounds import Count, Positive, Text


class PredictedBatch(BaseModel):
    """Predicted speed-ups with so many texts, by acceptance rate."""

    batch: Annotated[int, Field(ge=1, le=100_000)]
    tokens_per_s: Positive
    speedup: Annotated[dict[Text, Positive], Field(max_length=10)]


class Predicted(BaseModel):
    """What a plan predicts; no batches where nothing is known."""

    why_not: Text
    gpu: Text = ""
    gpus: Count = 0
    draft_len: Count = 0
    batches: Annotated[list[PredictedBatch], Field(max_length=64)] = []


class PlanDocument(BaseModel):
    """The document of `plan --json`."""

    format_version: Literal[1]
    name: Text
    predicted: Predicted | None
