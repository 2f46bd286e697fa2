# SPDX-License-Identifier: Apache-2.0
"""Schema of the output of `build --json`."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from trtspec.report.schemas.bounds import Text


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
