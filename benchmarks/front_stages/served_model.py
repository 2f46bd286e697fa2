# SPDX-License-Identifier: Apache-2.0
"""The null engine as a served model: the torch engine's model with another engine.

`null_engine` in config.pbtxt has its `Steps` as JSON.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.front_stages.null_engine import Steps
from benchmarks.front_stages.null_scheduler import NullScheduler
from trtspec.backends.embedded import served_model
from trtspec.serving.triton.python_models.tensors import Settings


class TritonPythonModel(served_model.TritonPythonModel):
    """The model class that Triton loads."""

    def open_engine(self, settings: Settings, artifact: Path) -> Any:
        return NullScheduler(Steps.parse(settings.parameter("null_engine")))
