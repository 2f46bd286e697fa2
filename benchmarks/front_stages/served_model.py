# SPDX-License-Identifier: Apache-2.0
"""The null engine as a served model; `null_engine` in config.pbtxt has its `Steps` as JSON."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from benchmarks.front_stages.null_engine import NullEngine, Steps
from trtspec.engine.generation.request import EngineRequest, Stats, Update
from trtspec.serving.triton.python_models import metrics as known
from trtspec.serving.triton.python_models.async_engine_model import AsyncEngineModel
from trtspec.serving.triton.python_models.tensors import Settings


class TritonPythonModel(AsyncEngineModel):
    """The model class that Triton loads."""

    NAME, DECIDES = "the null engine", "the benchmark"
    METRICS = known.OF_TEXTS

    def start_engine(self, root: Path, version: int, settings: Settings) -> None:
        starting = _start(Steps.parse(settings.parameter("null_engine")))
        self.engine = asyncio.run_coroutine_threadsafe(starting, self.loop).result(10)

    def end_engine(self) -> None:
        """Nothing runs outside the model's event loop."""

    async def generate(self, asked: EngineRequest, is_cancelled: Callable[[], bool]) -> AsyncIterator[Update]:
        prompt_len, made = len(asked.prompt_ids), 0
        async for ids in self.engine.generate(asked.sampling.seed, asked.max_new_tokens):
            made += len(ids)
            yield Update(ids, "length" if made == asked.max_new_tokens else None, Stats(prompt_len, made))


async def _start(steps: Steps) -> NullEngine:
    return NullEngine(steps)
