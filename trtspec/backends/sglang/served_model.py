# SPDX-License-Identifier: Apache-2.0
"""Triton model that generates token ids with SGLang's Engine; engine.json in its directory has the arguments.

Engine is created in the server's main thread, because it installs signal handlers.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from trtspec.core.errors import TrtspecError
from trtspec.engine.generation.request import EngineRequest, Stats, Update
from trtspec.engine.generation.request_state import DecodingStep, RunningRequest
from trtspec.serving.triton.python_models import metrics as known
from trtspec.serving.triton.python_models.async_engine_model import (
    AsyncEngineModel,
    resolve_model_path,
    unless_cancelled,
)
from trtspec.serving.triton.python_models.tensors import Settings

# Fields of SamplingParams (sgl-project/sglang:python/sglang/srt/sampling/sampling_params.py@v0.5.23) by guide type.
GUIDE_FIELDS = {"json": "json_schema", "json_schema": "json_schema", "regex": "regex", "ebnf_grammar": "ebnf"}
ANY_JSON = "{}"
BAD_REQUEST = 400  # the status of a response that SGLang ends at once, for example because a guide does not compile
COUNTS_S = 1.0  # maximum wait for the engine's counts after a stop text
PATH_KEYS = ("model_path", "speculative_draft_model_path", "speculative_adaptive_config", "uno_lora_path")


class TritonPythonModel(AsyncEngineModel):
    """The model class that Triton loads."""

    NAME = "SGLang"
    METRICS = (*known.OF_TEXTS, *known.OF_QUEUE, *known.OF_DRAFTS, *known.OF_STEPS, *known.OF_POSITIONS)

    def start_engine(self, root: Path, version: int, settings: Settings) -> None:
        from sglang import Engine

        self.engine = Engine(**read_arguments(root, version))

    def end_engine(self) -> None:
        self.engine.shutdown()

    def engine_queue(self) -> int | None:
        """Return the waiting requests of all schedulers, from the shared memory that /v1/loads reads.

        Source: sgl-project/sglang:python/sglang/srt/managers/tokenizer_control_mixin.py@v0.5.23 (get_loads). None for
        versions without it.
        """
        reader = getattr(self.engine.tokenizer_manager, "load_snapshot_reader", None)
        loads = reader.read_all() if reader else []
        return sum(load.num_waiting_reqs for load in loads) if loads else None

    async def generate(self, asked: EngineRequest, is_cancelled: Callable[[], bool]) -> AsyncIterator[Update]:
        """Yield updates as text becomes available; only the last one has a finish reason."""
        updates: list[Update] = []
        running = RunningRequest(asked, updates.append, self.tokenizer)
        # SGLang itself also ends a text at the tokenizer's eos token
        response = SglangResponse(self.engine, (*self.tokenizer.end_ids, *self.tokenizer.named("eos_token")))
        reason = None
        async for new in response.steps(asked, is_cancelled):
            if reason := running.advance(DecodingStep(0, list(new[:-1]), new[-1])):
                break
            running.update(None)
            while updates:
                yield without_drafts(updates.pop())
        await response.end()
        running.update(reason or "end_id")
        last = without_drafts(updates.pop())
        yield replace(last, stats=response.with_drafts(last.stats), queue_s=response.queue_s)


class SglangResponse:
    """A request to SGLang's Engine: its token ids, and the draft counts and queue time that SGLang reports."""

    def __init__(self, engine: Any, own_ends: Sequence[int]) -> None:
        self.engine, self.own_ends, self.id = engine, own_ends, uuid4().hex
        self.parts: AsyncIterator[dict[str, Any]] | None = None
        self.is_finished = False
        self.drafted = self.accepted = self.verified = 0
        self.histogram: list[int] = []  # entry n counts the steps that accepted n draft tokens
        self.queue_s: float | None = None

    async def steps(self, asked: EngineRequest, is_cancelled: Callable[[], bool]) -> AsyncIterator[list[int]]:
        """Yield each step's new token ids; abort and raise RequestCancelled if the client disconnects."""
        self.parts = await self.engine.async_generate(
            input_ids=list(asked.prompt_ids),
            sampling_params=sampling_params(asked, self.own_ends),
            stream=True,
            rid=self.id,
        )
        seen = 0
        while not self.is_finished:
            if new := (await unless_cancelled(self._part(), is_cancelled, self._abort))[seen:]:
                seen += len(new)
                yield new

    def with_drafts(self, stats: Stats) -> Stats:
        """Return the request's counts, including its drafts."""
        by_position = tuple(sum(self.histogram[position:]) for position in range(1, len(self.histogram)))
        stats = replace(stats, drafted=self.drafted, accepted=self.accepted, accepted_by_position=by_position)
        return replace(stats, steps=self.verified, draft_steps=self.verified)

    async def end(self) -> None:
        """Abort the request if it is still running after a stop text, and wait up to COUNTS_S for its counts."""
        if self.is_finished:
            return
        self._abort()
        # an aborted request may end with an error
        with suppress(asyncio.TimeoutError, ValueError, TrtspecError):
            await asyncio.wait_for(self._rest(), COUNTS_S)

    async def _rest(self) -> None:
        while not self.is_finished:
            await self._part()

    async def _part(self) -> list[int]:
        """Return all token ids so far, and store the counts; SGLang's parts are cumulative."""
        assert self.parts is not None
        if (part := await anext(self.parts, None)) is None:
            self.is_finished = True
            return []
        info = part["meta_info"]
        self.is_finished = info["finish_reason"] is not None
        if self.is_finished and info["finish_reason"].get("status_code") == BAD_REQUEST:
            raise TrtspecError(f"SGLang rejects the request: {str(info['finish_reason'].get('message'))[:300]}")
        self.accepted = info.get("spec_num_correct_drafts", 0)
        self.drafted = info.get("spec_num_proposed_drafts", 0)
        self.verified = info.get("spec_verify_ct", 0)
        self.histogram = info.get("spec_correct_drafts_histogram", [])
        self.queue_s = info.get("queue_time")
        return list(part["output_ids"])

    def _abort(self) -> None:
        self.engine.tokenizer_manager.abort_request(rid=self.id)


def read_arguments(root: Path, version: int) -> dict[str, Any]:
    """Return the arguments of Engine from engine.json, with absolute paths."""
    document: dict[str, Any] = json.loads((root / str(version) / "engine.json").read_text(encoding="utf-8"))
    return document | {key: resolve_model_path(root, document[key]) for key in PATH_KEYS if key in document}


def sampling_params(asked: EngineRequest, own_ends: Sequence[int]) -> dict[str, Any]:
    """Return the request's sampling parameters; `own_ends` are the token ids at which SGLang itself ends a text.

    SGLang stores seeds in 63 bits and uses them only with enable_deterministic_inference.
    """
    sampling, ends = asked.sampling, set(asked.end_ids)
    found: dict[str, Any] = {"max_new_tokens": asked.max_new_tokens, "temperature": sampling.temperature}
    if sampling.temperature > 0.0:
        seed = sampling.seed % 2**63
        found |= {"top_p": sampling.top_p, "top_k": sampling.top_k or -1, "sampling_seed": seed}
    if (constraint := asked.constraint) is not None:
        guide = ANY_JSON if constraint.guide_type == "json" else constraint.guide
        found[GUIDE_FIELDS[constraint.guide_type]] = guide
    if not ends or not ends.issuperset(own_ends):  # other end ids are detected only by this model, one step later
        return found | {"ignore_eos": True}
    return found | {"stop_token_ids": sorted(ends)}


def without_drafts(update: Update) -> Update:
    """Return an update without draft counts, because SGLang reports them only at the end."""
    return replace(update, stats=replace(update.stats, drafted=0, accepted=0, steps=0, accepted_by_position=()))
