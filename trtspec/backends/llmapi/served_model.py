# SPDX-License-Identifier: Apache-2.0
"""Token ids to token ids, on TensorRT-LLM's LLM API with the arguments of model.yaml beside this file.

One asyncio loop in a thread of its own holds the engine, follows every request and sends every response, so that no two
threads ever send. Stop texts, half characters and limits are those of the torch engine: the LLM API looks for stop
words by their tokens, and a text may be written in others.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils
import yaml

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

ENGINE = "the LLM API"
POLL_S = 0.1  # how often a waiting request looks whether its client is still there
SHUTDOWN_S = 30
DRAFT_KEYS = ("speculative_model", "speculative_model_dir")


class TritonPythonModel:
    """Triton calls initialize, execute and finalize by name."""

    def initialize(self, args: dict[str, str]) -> None:
        settings = Settings(args)
        self.decoupled = settings.decoupled
        self.tokenizer = settings.tokenizer()
        self.reader = TokenReader(self.tokenizer)
        self.greedy_only = settings.parameter("greedy_only") == "true"
        self.limits = Limits(int(settings.parameter("max_seq_len")), int(settings.parameter("max_input_len")))
        root = Path(args["model_repository"])
        arguments = read_arguments(root, int(args["model_version"]), settings)
        # before tensorrt_llm is imported: its workers see the GPUs that this process saw then
        if gpus := settings.parameter("gpu_device_ids"):
            os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["TRTLLM_VISIBLE_DEVICES"] = gpus
        self.lock = threading.Lock()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="llmapi", daemon=True)
        self.thread.start()
        self.llm = make_llm(arguments)

    def execute(self, requests: list[Any]) -> list[Any] | None:
        running = [asyncio.run_coroutine_threadsafe(self.serve(request), self.loop) for request in requests]
        return None if self.decoupled else [each.result() for each in running]

    def finalize(self) -> None:
        asyncio.run_coroutine_threadsafe(stop_tasks(), self.loop).result(SHUTDOWN_S)
        self.llm.shutdown()
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
            raise TrtspecError(f"num_draft_tokens is not supported by {ENGINE}: model.yaml decides", hint=hint)
        asked = Request(**self.reader.read(inputs), sampling=SamplingOptions(**read_sampling(inputs, "runtime_")))
        check_request(asked, self.limits, self.tokenizer.vocab_size, has_tokenizer=True)
        return asked

    async def generate(self, asked: Request, is_cancelled: Callable[[], bool]) -> AsyncIterator[Update]:
        """Yield what can be shown as it comes; the last update has a finish reason."""
        updates: list[Update] = []
        running = Running(asked, updates.append, self.tokenizer)
        if running.samples and self.greedy_only:
            hint = "set temperature to 0, or serve with TensorRT-LLM 1.3 or later"
            raise TrtspecError(
                "this version of the LLM API does not sample from the target's own distribution", hint=hint
            )
        result = self.llm.generate_async(list(asked.prompt_ids), sampling_params(asked), streaming=True)
        seen, reason = 0, None
        async for ids in steps(result, is_cancelled):
            if new := ids[seen:]:
                seen = len(ids)
                reason = running.advance(Progress(0, list(new[:-1]), new[-1]))
            if reason:
                break
            running.update(None)
            while updates:
                yield counted(updates.pop(), result)
        if not result.finished:  # a stop text is ours alone
            result.abort()
        running.update(reason or "end_id")
        yield counted(updates.pop(), result)


class Cancelled(Exception):
    """The client has left."""


def read_arguments(root: Path, version: int, settings: Settings) -> dict[str, Any]:
    """Return model.yaml's arguments of LLM with absolute paths; raises where it and config.pbtxt contradict."""
    path = root / str(version) / "model.yaml"
    document: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    said = document.pop("triton_config")
    expected = {"max_batch_size": settings.max_batch_size, "decoupled": settings.decoupled}
    if said != expected:
        raise TrtspecError(f"triton_config is {said}, config.pbtxt has {expected}", where=str(path))
    document["model"] = located(root, document["model"])
    speculation = document.get("speculative_config", {})
    for key in DRAFT_KEYS:
        if key in speculation:
            speculation[key] = located(root, speculation[key])
    return document


def located(root: Path, model: str) -> str:
    """Return a directory relative to this model's as an absolute path; a hub id stays."""
    return str((root / model).resolve()) if model.startswith(".") else model


def make_llm(arguments: dict[str, Any]) -> Any:
    """Start the engine; up to 1.2 sections have to be made by TensorRT-LLM's own function."""
    from tensorrt_llm import LLM
    from tensorrt_llm.llmapi.llm_utils import update_llm_args_with_extra_dict

    return LLM(**update_llm_args_with_extra_dict({}, arguments))


def sampling_params(asked: Request) -> Any:
    """Return the request in the LLM API's words; with neither top_k nor top_p it would be greedy at any temperature."""
    from tensorrt_llm import SamplingParams

    sampling: dict[str, Any] = {}
    if asked.sampling.temperature > 0.0 and asked.sampling.top_k != 1:
        sampling = {key: getattr(asked.sampling, key) for key in ("temperature", "top_p", "seed")}
        sampling["top_k"] = asked.sampling.top_k or None
    end, *further = asked.end_ids or (None,)
    return SamplingParams(
        max_tokens=asked.max_new_tokens,
        end_id=end,
        pad_id=end,
        ignore_eos=end is None,
        stop_token_ids=further or None,
        detokenize=False,
        return_perf_metrics=True,
        **sampling,
    )


async def steps(result: Any, is_cancelled: Callable[[], bool]) -> AsyncIterator[list[int]]:
    """Yield all ids so far, step by step; raises Cancelled, with the request ended, where the client has left."""
    iterator = aiter(result)
    while True:
        step = asyncio.ensure_future(anext(iterator, None))
        while not (await asyncio.wait({step}, timeout=POLL_S))[0]:
            if is_cancelled():
                break
        if not step.done() or is_cancelled():
            step.cancel()
            result.abort()
            raise Cancelled
        if (made := step.result()) is None:
            return
        yield made.outputs[0].token_ids


def counted(update: Update, result: Any) -> Update:
    """Return an update with drafts as the LLM API counts them, none where it counts none."""
    metrics = getattr(result.outputs[0], "request_perf_metrics", None)
    drafts = getattr(metrics, "speculative_decoding", None)
    drafted, accepted = (drafts.total_draft_tokens, drafts.total_accepted_draft_tokens) if drafts else (0, 0)
    return replace(update, stats=replace(update.stats, drafted=drafted, accepted=accepted))


async def stop_tasks() -> None:
    """End what is still running on the loop."""
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
