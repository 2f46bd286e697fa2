# SPDX-License-Identifier: Apache-2.0
"""Schema of the output of `train --json`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from trtspec.report.schemas.bounds import Count, Number, Positive, Share, Text


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
