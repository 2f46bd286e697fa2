# SPDX-License-Identifier: Apache-2.0
"""Schema of the output of `bench --json`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from trtspec.report.schemas.bounds import Count, Number, Positive, Share


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
