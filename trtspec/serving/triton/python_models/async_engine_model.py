# SPDX-License-Identifier: Apache-2.0
"""Base class of token-level Triton models whose engine runs asynchronously in the model's process.

One asyncio loop in its own thread handles all requests and sends all responses, so two threads never send at once. Stop
strings, incomplete characters and limits work as in the torch engine. A subclass provides the engine and converts
requests and counts.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import triton_python_backend_utils as pb_utils

from trtspec.core.errors import TrtspecError
from trtspec.engine.generation.request import EngineRequest, SamplingOptions, TokenLimits, Update, check_request
from trtspec.serving.triton.nvidia_compat import GRAMMARS, GUIDES
from trtspec.serving.triton.python_models.fields import TOKEN_NAMES
from trtspec.serving.triton.python_models.interruptions import DisconnectCheck, DrainWatcher
from trtspec.serving.triton.python_models.metrics import EngineMetrics
from trtspec.serving.triton.python_models.responses import RequestCancelled, RequestLimit, Responder
from trtspec.serving.triton.python_models.tensors import (
    RequestTensors,
    Settings,
    check_draft_tokens,
    check_unsupported,
    check_unsupported_inputs,
    read_sampling,
    wants_stream,
)
from trtspec.serving.triton.python_models.token_channel import TokenChannels
from trtspec.serving.triton.python_models.token_io import TokenReader, UnsentTokens, read_constraint

POLL_S = 0.1  # interval between checks for a disconnected client
SHUTDOWN_S = 30

T = TypeVar("T")


class AsyncEngineModel:
    """Base class of the models; Triton calls `initialize`, `execute` and `finalize` by name.

    Attributes:
        NAME: name of the engine in error messages.
        METRICS: metrics that the engine can report.
        GPU_VARIABLES: environment variables that must name the GPUs before the engine is imported.
    """

    NAME: ClassVar[str]
    METRICS: ClassVar[Sequence[Any]]
    GPU_VARIABLES: ClassVar[Sequence[str]] = ("CUDA_VISIBLE_DEVICES",)

    def start_engine(self, root: Path, version: int, settings: Settings) -> None:
        """Start the engine of the model in `root`; called in the process's main thread after the loop has started."""
        raise NotImplementedError

    def end_engine(self) -> None:
        """Stop the engine after all requests have ended."""
        raise NotImplementedError

    def generate(self, asked: EngineRequest, is_cancelled: Callable[[], bool]) -> AsyncIterator[Update]:
        """Yield updates as the engine produces them; the last one has a finish reason.

        The tokens of each update before it end with a complete character, as those of `RunningRequest`. Runs on the
        model's event loop. Raises RequestCancelled if `is_cancelled` returns True.
        """
        raise NotImplementedError

    def engine_queue(self) -> int | None:
        """Return the number of requests in the engine's own queue, or None if it does not report it."""
        return None

    def check(self, asked: EngineRequest) -> None:
        """Raise TrtspecError for a request that is within the limits but not supported by the engine."""

    def initialize(self, args: dict[str, str]) -> None:
        settings = Settings(args)
        self.decoupled, self.inputs = settings.decoupled, settings.inputs
        self.tokenizer = settings.tokenizer()
        self.reader = TokenReader(self.tokenizer)
        self.limits = TokenLimits(int(settings.parameter("max_seq_len")), int(settings.parameter("max_input_len")))
        self.sampling_defaults = settings.sampling_defaults
        self.has_grammars, self.draft_len = settings.flag(GRAMMARS), settings.draft_len
        # before the engine is imported, because its workers use the GPUs visible at that time
        if gpus := settings.parameter("gpu_device_ids"):
            os.environ.update(dict.fromkeys(self.GPU_VARIABLES, gpus))
        self.lock = threading.Lock()
        self.shutdown = DrainWatcher(args["model_repository"])
        self.channels = TokenChannels(pb_utils, self.lock, self.shutdown)
        self.is_flushing = False
        self.room = RequestLimit(settings.max_batch_size, settings.max_queue_size)
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="requests", daemon=True)
        self.thread.start()
        self.start_engine(Path(args["model_repository"]), int(args["model_version"]), settings)
        slots = settings.max_batch_size
        self.metrics = EngineMetrics(pb_utils, args, self.METRICS, slots=slots, engine_queue=self.engine_queue)

    def execute(self, requests: list[Any]) -> list[Any] | None:
        texts = [request for request in requests if not (self.decoupled and self.channels.opens(request))]
        running = [asyncio.run_coroutine_threadsafe(self.serve(request), self.loop) for request in texts]
        return None if self.decoupled else [each.result() for each in running]

    def finalize(self) -> None:
        asyncio.run_coroutine_threadsafe(stop_tasks(), self.loop).result(SHUTDOWN_S)
        self.end_engine()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(SHUTDOWN_S)
        self.channels.close()
        self.metrics.close()
        self.shutdown.close()

    async def serve(self, request: Any) -> Any:
        """Answer one request and return its response, which is None for a decoupled model."""
        responder = Responder(pb_utils, request, self.lock, decoupled=self.decoupled, shutdown=self.shutdown)
        text = self.metrics.text()
        try:
            with self.room:
                inputs = RequestTensors(pb_utils, request)
                with inputs.naming(TOKEN_NAMES):
                    asked = self.read(inputs)
                    streaming = wants_stream(inputs, "streaming", decoupled=self.decoupled)
                unsent = UnsentTokens(inputs, asked.prompt_ids, streaming=streaming)
                channel = self.channels.stream(inputs.parameters) if streaming else None
                is_cancelled = DisconnectCheck(responder.is_cancelled, POLL_S)
                if channel is not None:
                    is_cancelled.has_left = channel.has_left
                text.handed_over()
                async for update in self.generate(asked, is_cancelled):
                    text.updated(update)
                    if channel is not None and not update.finish_reason:
                        channel.add(update.new_ids, update.stats)
                        self.flush_soon()
                        continue
                    unsent.add(update.new_ids)
                    if update.finish_reason or streaming:
                        responder.send_tensors(partial(unsent.take, update.stats), final=bool(update.finish_reason))
        except RequestCancelled:
            text.ended("cancelled")
            responder.send_cancelled()
        except Exception as error:
            text.failed(error)
            responder.send_failure(error)
        return responder.response

    def flush_soon(self) -> None:
        """Send the tokens in the channels once the loop has handled what is ready now, such as a step of all texts."""
        if not self.is_flushing:
            self.is_flushing = True
            self.loop.call_soon(self.flush)

    def flush(self) -> None:
        self.is_flushing = False
        self.channels.flush()

    def read(self, inputs: RequestTensors) -> EngineRequest:
        """Parse the inputs of a request; raises TrtspecError for features that this engine does not support."""
        inputs.reject_undeclared(self.inputs, self.NAME)
        check_unsupported(inputs, self.NAME)
        check_unsupported_inputs(inputs, self.inputs, self.NAME, GUIDES)
        check_draft_tokens(inputs, self.draft_len, self.NAME)
        if (constraint := read_constraint(inputs)) and not self.has_grammars:
            message = f"structured output is not supported by this deployment of {self.NAME}"
            raise TrtspecError(message, hint="build the recipe with serving.structured_output: true")
        sampling = SamplingOptions(**read_sampling(inputs, "runtime_", self.sampling_defaults))
        asked = EngineRequest(**self.reader.read(inputs), sampling=sampling, constraint=constraint)
        check_request(asked, self.limits, self.tokenizer.vocab_size, has_tokenizer=True)
        self.check(asked)
        return asked


async def unless_cancelled(step: Awaitable[T], is_cancelled: Callable[[], bool], abort: Callable[[], None]) -> T:
    """Await a step of the engine; if the client disconnects, call `abort` and raise RequestCancelled."""
    waiting = asyncio.ensure_future(step)
    while not (await asyncio.wait({waiting}, timeout=POLL_S))[0] and not is_cancelled():
        pass
    if is_cancelled():
        waiting.cancel()
        abort()
        raise RequestCancelled
    return waiting.result()


def resolve_model_path(root: Path, model: str) -> str:
    """Return a path that is relative to the model's directory as an absolute path, and a hub id unchanged."""
    return str((root / model).resolve()) if model.startswith(".") else model


async def stop_tasks() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
