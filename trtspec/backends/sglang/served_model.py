# SPDX-License-Identifier: Apache-2.0
"""Token ids to token ids, on SGLang's Engine with the arguments of engine.json beside this file.

One asyncio loop in a thread of its own follows every request and sends every response, so no two threads ever send.
Engine itself starts in the server's main thread, where its signal handlers have to be. Stop texts, half characters and
limits are those of the torch engine.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import triton_python_backend_utils as pb_utils

from trtspec.errors import TrtspecError
from trtspec.generation.checks import check_request
from trtspec.generation.request import Limits, Request, SamplingOptions, Update
from trtspec.generation.running import Progress, Running
from trtspec.triton.python_models.responses import Responder
from trtspec.triton.python_models.tensors import (
    RequestTensors,
    Settings,
    read_sampling,
    refuse_unsupported,
    wants_stream,
)
from trtspec.triton.python_models.token_model import TokenReader, Unsent

ENGINE = "SGLang"
POLL_S = 0.1  # how often a waiting request looks whether its client is still there
COUNTS_S = 1.0  # how long an answer that ended here waits for the engine's counts
SHUTDOWN_S = 30
PATH_KEYS = ("model_path", "speculative_draft_model_path", "speculative_adaptive_config")


class TritonPythonModel:
    """Triton calls initialize, execute and finalize by name."""

    def initialize(self, args: dict[str, str]) -> None:
        settings = Settings(args)
        self.decoupled = settings.decoupled
        self.tokenizer = settings.tokenizer()
        self.reader = TokenReader(self.tokenizer)
        self.limits = Limits(int(settings.parameter("max_seq_len")), int(settings.parameter("max_input_len")))
        arguments = read_arguments(Path(args["model_repository"]), int(args["model_version"]))
        # before sglang is imported: its schedulers see the GPUs that this process saw then
        if gpus := settings.parameter("gpu_device_ids"):
            os.environ["CUDA_VISIBLE_DEVICES"] = gpus
        self.lock = threading.Lock()
        self.engine = make_engine(arguments)
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="sglang", daemon=True)
        self.thread.start()

    def execute(self, requests: list[Any]) -> list[Any] | None:
        running = [asyncio.run_coroutine_threadsafe(self.serve(request), self.loop) for request in requests]
        return None if self.decoupled else [each.result() for each in running]

    def finalize(self) -> None:
        asyncio.run_coroutine_threadsafe(stop_tasks(), self.loop).result(SHUTDOWN_S)
        self.engine.shutdown()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(SHUTDOWN_S)

    async def serve(self, request: Any) -> Any:
        """Answer one request; returns the response where only one may be sent."""
        responder = Responder(pb_utils, request, self.lock, decoupled=self.decoupled)
        try:
            inputs = RequestTensors(pb_utils, request)
            asked = self.read(inputs)
            streaming = wants_stream(inputs, "streaming", decoupled=self.decoupled)
            unsent = Unsent(inputs, asked.prompt_ids)
            async for update in self.generate(asked, responder.is_cancelled):
                unsent.add(update.new_ids)
                if update.finish_reason or streaming:
                    responder.send_tensors(partial(unsent.take, update.stats), final=bool(update.finish_reason))
        except Cancelled:
            responder.send_cancelled()
        except Exception as error:
            responder.send_failure(error)
        return responder.response

    def read(self, inputs: RequestTensors) -> Request:
        """Return what the tensors of a request ask for; raises for what this engine does not do."""
        refuse_unsupported(inputs, ENGINE)
        if inputs.scalar("return_generation_logits", False):
            raise TrtspecError(f"return_generation_logits is not supported by {ENGINE}")
        if inputs.scalar("num_draft_tokens") is not None:
            hint = "leave it out; to compare, serve the recipe with method: none beside it"
            raise TrtspecError(f"num_draft_tokens is not supported by {ENGINE}: engine.json decides", hint=hint)
        asked = Request(**self.reader.read(inputs), sampling=SamplingOptions(**read_sampling(inputs, "runtime_")))
        check_request(asked, self.limits, self.tokenizer.vocab_size, has_tokenizer=True)
        return asked

    async def generate(self, asked: Request, is_cancelled: Callable[[], bool]) -> AsyncIterator[Update]:
        """Yield what can be shown as it comes; the last update has a finish reason."""
        updates: list[Update] = []
        running = Running(asked, updates.append, self.tokenizer)
        answer = Answer(self.engine, self.tokenizer.end_ids)
        reason = None
        async for new in answer.steps(asked, is_cancelled):
            if reason := running.advance(Progress(0, list(new[:-1]), new[-1])):
                break
            running.update(None)
            while updates:
                yield updates.pop()
        await answer.end()
        running.update(reason or "end_id")
        last = updates.pop()
        yield replace(last, stats=replace(last.stats, drafted=answer.drafted, accepted=answer.accepted))


class Cancelled(Exception):
    """The client has left."""


class Answer:
    """One request of the engine's: its steps, its end, and its drafts as SGLang counts them (none without drafts)."""

    def __init__(self, engine: Any, own_ends: Sequence[int]) -> None:
        self.engine, self.own_ends, self.id = engine, own_ends, uuid4().hex
        self.parts: AsyncIterator[dict[str, Any]] | None = None
        self.is_finished = False
        self.drafted = self.accepted = 0

    async def steps(self, asked: Request, is_cancelled: Callable[[], bool]) -> AsyncIterator[list[int]]:
        """Yield each step's ids; raises Cancelled, with the request ended, where the client has left."""
        self.parts = await self.engine.async_generate(
            input_ids=list(asked.prompt_ids),
            sampling_params=sampling_params(asked, self.own_ends),
            stream=True,
            rid=self.id,
        )
        seen = 0
        while not self.is_finished:
            step = asyncio.ensure_future(self._part())
            while not (await asyncio.wait({step}, timeout=POLL_S))[0] and not is_cancelled():
                pass
            if is_cancelled():
                self._abort()
                step.cancel()
                raise Cancelled
            if new := step.result()[seen:]:
                seen += len(new)
                yield new

    async def end(self) -> None:
        """End what the engine has not: a stop text is ours alone. Its counts come with its last part."""
        if self.is_finished:
            return
        self._abort()
        with suppress(asyncio.TimeoutError, ValueError):  # an aborted request may end with SGLang's ValueError
            await asyncio.wait_for(self._rest(), COUNTS_S)

    async def _rest(self) -> None:
        while not self.is_finished:
            await self._part()

    async def _part(self) -> list[int]:
        """Return all ids so far: parts are not increments unless Engine is told so."""
        assert self.parts is not None
        if (part := await anext(self.parts, None)) is None:
            self.is_finished = True
            return []
        about = part["meta_info"]
        self.is_finished = about["finish_reason"] is not None
        self.accepted = about.get("spec_num_correct_drafts", 0)
        self.drafted = about.get("spec_num_proposed_drafts", 0)
        return list(part["output_ids"])

    def _abort(self) -> None:
        self.engine.tokenizer_manager.abort_request(rid=self.id)


def read_arguments(root: Path, version: int) -> dict[str, Any]:
    """Return engine.json's arguments of Engine, with absolute paths."""
    document: dict[str, Any] = json.loads((root / str(version) / "engine.json").read_text(encoding="utf-8"))
    return document | {key: located(root, document[key]) for key in PATH_KEYS if key in document}


def located(root: Path, model: str) -> str:
    """Return a path relative to this model's as an absolute one; a hub id stays."""
    return str((root / model).resolve()) if model.startswith(".") else model


def make_engine(arguments: dict[str, Any]) -> Any:
    """Start the engine."""
    from sglang import Engine

    return Engine(**arguments)


def sampling_params(asked: Request, own_ends: Sequence[int]) -> dict[str, Any]:
    """Return the request in SGLang's words; `own_ends` are the ids that end the model's texts by themselves.

    SGLang keeps seeds in 63 bits, and reads them where it is started with enable_deterministic_inference.
    """
    sampling, ends = asked.sampling, set(asked.end_ids)
    found: dict[str, Any] = {"max_new_tokens": asked.max_new_tokens, "temperature": sampling.temperature}
    if sampling.temperature > 0.0:
        seed = sampling.seed % 2**63
        found |= {"top_p": sampling.top_p, "top_k": sampling.top_k or -1, "sampling_seed": seed}
    if not ends or not ends.issuperset(own_ends):  # other ids are looked for here alone, a step later
        return found | {"ignore_eos": True}
    return found | {"stop_token_ids": sorted(ends)}


async def stop_tasks() -> None:
    """End what is still running on the loop."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
