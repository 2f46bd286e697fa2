# SPDX-License-Identifier: Apache-2.0
"""Schema of the output of `plan --json`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from trtspec.report.schemas.bounds import Count, Positive, Text


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
