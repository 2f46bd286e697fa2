# SPDX-License-Identifier: Apache-2.0
"""DSpark: a block net with a small sequential head, so that each token of a block depends on the previous one.

deepseek-ai/DeepSpec adds two heads to DFlash's net: a low-rank Markov head, and a head that estimates acceptance.
"""

from __future__ import annotations

from pydantic import Field, ValidationInfo, field_validator

from trtspec.methods.base import Options
from trtspec.methods.dflash import block_net_method
from trtspec.recipe.schema import refuse


class DSparkOptions(Options):
    """Files with which TensorRT-LLM decides by the confidence head how many drafted tokens a step verifies."""

    confidence_cost_table: str | None = Field(
        default=None, min_length=1, description="LLM API: step times that TensorRT-LLM's profiler wrote"
    )
    confidence_calibration: str | None = Field(
        default=None, min_length=1, description="LLM API: calibration of the head's estimates"
    )
    confidence_min_gain: float | None = Field(
        default=None, ge=0, le=1, description="LLM API: least predicted gain for which a step is shortened"
    )

    @field_validator("confidence_calibration", "confidence_min_gain")
    @classmethod
    def _need_a_table(cls, value: object, info: ValidationInfo) -> object:
        if value is not None and info.data.get("confidence_cost_table", "") is None:
            message = f"{info.field_name} requires confidence_cost_table"
            raise refuse("bad-value", message, "without the table TensorRT-LLM verifies every draft in full")
        return value


METHOD = block_net_method(
    "dspark",
    "a net trained for the target fills a block, each token depending on the one before it",
    "a DSpark net: it has a Markov head",
    DSparkOptions,
)
