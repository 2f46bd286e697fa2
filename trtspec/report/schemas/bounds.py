# SPDX-License-Identifier: Apache-2.0
"""Types with bounds for values of untrusted documents."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

Text = Annotated[str, Field(max_length=2000)]
Share = Annotated[float, Field(ge=0, le=1)]
Number = Annotated[float, Field(gt=-1e12, lt=1e12)]
Positive = Annotated[float, Field(gt=0, lt=1e12)]
Count = Annotated[int, Field(ge=0, lt=10**12)]
Millis = Annotated[float, Field(ge=0, lt=1e12)]
