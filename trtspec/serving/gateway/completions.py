# SPDX-License-Identifier: Apache-2.0
"""Completion requests (`/v1/completions`, `/v1/chat/completions`): parsing, generation and response."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from trtspec.serving.gateway.config import GatewayConfig
from trtspec.serving.gateway.errors import ApiError
from trtspec.serving.gateway.generation import (
    ChatFormat,
    CompletionFormat,
    Delta,
    GenerationState,
    TextGeneration,
    TokenGeneration,
)
from trtspec.serving.gateway.http import HttpExchange
from trtspec.serving.gateway.parameters import RequestParameters, check_model, read_parameters
from trtspec.serving.gateway.prompts import Prompt, PromptReader
from trtspec.serving.gateway.tool_calls import HERMES, ToolCallParser
from trtspec.serving.gateway.triton import TritonClient, TritonModelInfo, choice_seed, text_request, token_request
from trtspec.serving.triton.names import ADD_SPECIAL_TOKENS
from trtspec.serving.triton.python_models.tensors import NO_ID
from trtspec.serving.triton.python_models.token_io import stop_sequences

MAX_RESUMES = 2  # attempts to resume one completion
MANY_BIASES = 1000  # larger maps are parsed in a thread so that the event loop is not blocked
ResumeFn: TypeAlias = "Callable[[ApiError], Awaitable[TritonClient | None]]"
IndexedDeltas: TypeAlias = "AsyncGenerator[tuple[int, Delta], None]"


@dataclass
class ChoiceGeneration:
    """One completion of a request, and the Triton request that generates it."""

    text: GenerationState
    request: Any
    # Returns the Triton request for the rest of an interrupted completion, or None if the prompt and the tokens so far
    # exceed the input limit.
    rest: Callable[[], Any] | None = None
    events: DirectEvents | None = None
    progress: Callable[[], None] | None = None  # called for each model response without an event
    _ended: Delta | None = None  # the last delta, if `_push` made it

    async def deltas(self, index: int, triton: TritonClient, rescue: ResumeFn | None) -> IndexedDeltas:
        """Generate the completion and yield `(index, delta)` for each delta that is not empty.

        Closing the iterator cancels the request. If the stream fails, the server that `rescue` returns generates the
        rest, at most MAX_RESUMES times. Raises ApiError if the stream fails and cannot be resumed.
        """
        for attempt in range(1 + MAX_RESUMES):
            try:
                async with aclosing(triton.generate(self.request, self._push)) as responses:
                    async for outputs, last in responses:
                        delta = self._ended or self.text.take(outputs, last=last)
                        if not delta.is_empty:
                            yield index, delta
                        elif self.progress is not None:
                            self.progress()
                        if delta.finish_reason:
                            return
                return
            except ApiError as error:
                able = error.status >= 500 and self.text.completion_tokens and attempt < MAX_RESUMES
                rest = self.rest() if able and self.rest is not None else None
                other = None if rest is None or rescue is None else await rescue(error)
                if other is None:
                    raise
                triton, self.request = other, rest
                self.text.resume()

    def _push(self, ids: list[int]) -> bool:
        """Write the event of new tokens; return False to leave them, or the delta that ends the text, to `deltas`."""
        if self.events is None or not self.events.are_taken():
            return False
        assert isinstance(self.text, TokenGeneration)  # models with text tensors have no token channels
        delta = self.text.take_ids(ids)
        if isinstance(delta, Delta) and delta.finish_reason:
            self._ended = delta
            return False
        if not self.events.write(delta) and self.progress is not None:
            self.progress()
        return True


class DirectEvents:
    """Writes the events of a streamed response with one completion as its tokens arrive, without waking a task.

    Call `write` only while `are_taken` returns True.
    """

    def __init__(self, exchange: HttpExchange, form: CompletionFormat) -> None:
        self._form = form
        self._render, self._write = form.text_chunk(0), exchange.write_now
        self.are_taken = exchange.takes_events

    def write(self, delta: Delta | str) -> bool:
        """Write the event of a delta; return False if it is empty and has none."""
        if isinstance(delta, str):
            if not delta:
                return False
            self._write(self._render(delta))
        else:
            if delta.is_empty:
                return False
            self._write(self._form.chunk(0, delta, first=False))
        return True


@dataclass
class CompletionJob:
    """A parsed completion request, and the state of its completions once generation has started.

    Attributes:
        asked: parameters shared by all completions.
        grown: state of each completion, ordered by prompt, then by choice.
        seconds: duration of the generation.
    """

    asked: RequestParameters
    prompts: Sequence[Prompt]
    chat: bool
    grown: list[GenerationState] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def texts(self) -> int:
        return len(self.prompts) * int(self.asked["n"])

    @property
    def drafted(self) -> int:
        return sum(text.drafted for text in self.grown)

    @property
    def accepted(self) -> int:
        return sum(text.accepted for text in self.grown)


class Completions:
    """Parses and answers completion requests with one Triton model."""

    def __init__(self, config: GatewayConfig, triton: TritonClient, prompts: PromptReader) -> None:
        self._config, self._triton, self._prompts = config, triton, prompts

    async def read(self, body: Mapping[str, Any], *, chat: bool) -> CompletionJob:
        """Parse and validate a request body; raises ApiError if it is invalid."""
        check_model(body, self._config.model)
        self._prompts.check_sizes(body)
        biases = body.get("logit_bias")
        if isinstance(biases, dict) and len(biases) > MANY_BIASES:
            asked = await asyncio.to_thread(read_parameters, body, chat=chat)
        else:
            asked = read_parameters(body, chat=chat)
        self._prompts.check_bias(asked)
        asked = self._prompts.with_calls(asked)
        return CompletionJob(asked, await self._prompts.read(body, asked["n"], chat=chat, tools=asked.tools), chat)

    async def make(self, exchange: HttpExchange, job: CompletionJob, rescue: ResumeFn) -> None:
        """Generate the completions of a job and send the response; raises ApiError if the model fails.

        If a resumable completion is interrupted, the server that `rescue` returns generates the rest. The greedy output
        of that server must be identical to this model's.
        """
        form = (ChatFormat if job.chat else CompletionFormat)(
            self._config.model,
            texts_a_prompt=job.asked["n"],
            include_usage=job.asked.include_usage,
            draft_len=self._config.draft_len,
            fingerprint=self._config.fingerprint,
        )
        events = DirectEvents(exchange, form) if job.asked["stream"] else None
        async with aclosing(await self._begin(job, rescue, events, exchange.note_tokens)) as deltas:
            await (self._stream if job.asked["stream"] else self._respond_complete)(exchange, form, job, deltas)

    async def generate_silent(self, job: CompletionJob) -> None:
        """Generate the completions of a job and discard them; raises ApiError if the model fails."""
        async with aclosing(await self._begin(job)) as deltas:
            async for _ in deltas:
                pass

    async def _begin(
        self,
        job: CompletionJob,
        rescue: ResumeFn | None = None,
        events: DirectEvents | None = None,
        progress: Callable[[], None] | None = None,
    ) -> IndexedDeltas:
        """Build one Triton request per completion and return the merged stream of `(index, delta)`.

        With `events`, deltas of a single completion after the first may be written instead. `progress` is called for
        each model response without a delta.
        """
        model, asked = await self._triton.model(), job.asked
        param = "messages" if job.chat else "prompt"
        makings = [
            self._start_choice(model, prompt, fitted, choice)
            for prompt in job.prompts
            for fitted in [self._prompts.fitted(asked, prompt, param)]
            for choice in range(asked["n"])
        ]
        job.grown = [making.text for making in makings]
        for making in makings:
            making.events, making.progress = events if len(makings) == 1 else None, progress
        sources = [making.deltas(index, self._triton, rescue) for index, making in enumerate(makings)]
        return sources[0] if len(sources) == 1 else merge_deltas(sources)

    def _start_choice(
        self, model: TritonModelInfo, prompt: Prompt, asked: RequestParameters, choice: int
    ) -> ChoiceGeneration:
        seed = choice_seed(asked, choice)
        if isinstance(prompt, str):
            prompt = self._prompts.as_sent(prompt, takes_flag=ADD_SPECIAL_TOKENS in model.inputs)
            text: GenerationState = TextGeneration(asked, prompt, self._calls(asked), own_counts=model.own_counts)
            return ChoiceGeneration(text, text_request(model, prompt, asked, seed))
        tokenizer, pieces, markers = self._prompts.tokenizer, self._prompts.pieces, self._prompts.marker_ids
        text = TokenGeneration(asked, prompt, tokenizer, pieces, self._calls(asked), markers if asked.tools else {})
        end_id, stop_words = self._ends(asked)

        def request(ids: Sequence[int], asked: RequestParameters) -> Any:
            return token_request(model, ids, asked, seed, end_id, stop_words, self._prompts.bias_len)

        def rest() -> Any:
            if len(prompt) + len(text.ids) > self._config.max_input_len:
                return None
            left = replace(asked, max_tokens=(asked.max_tokens or 0) - len(text.ids))
            return request((*prompt, *text.ids), left)

        return ChoiceGeneration(text, request(prompt, asked), rest if is_resumable(asked) else None)

    def _calls(self, asked: RequestParameters) -> ToolCallParser | None:
        """Return the parser of one completion's tool calls, None for a request without tools."""
        tools = asked.tools
        if tools is None:
            return None
        form = self._prompts.tool_format or HERMES  # required calls are a list in JSON, whatever the format
        return ToolCallParser(form, tools.names, parallel=tools.parallel, forced=tools.must_call)

    def _ends(self, asked: RequestParameters) -> tuple[int, list[list[int]]]:
        """Return the end token id and the stop words, as token id lists, for the engine.

        A stop string without a token sequence is omitted, because `StopCutter` searches for it in the text.
        """
        words = stop_sequences(self._prompts.pieces, asked.stop)
        end_ids = self._prompts.tokenizer.end_ids
        if asked["ignore_eos"] or not end_ids:
            return NO_ID, words
        return end_ids[0], [*words, *([token] for token in self._config.stop_ids)]

    async def _stream(
        self, exchange: HttpExchange, form: CompletionFormat, job: CompletionJob, deltas: IndexedDeltas
    ) -> None:
        """Send deltas as server-sent events; the response starts with the first, so earlier errors set the status."""
        begun: set[int] = set()
        async for index, delta in deltas:
            if not begun:
                exchange.first_token_at = time.monotonic()
                await exchange.begin_stream()
            await exchange.write(form.chunk(index, delta, first=index not in begun))
            begun.add(index)
        if job.asked.include_usage:
            await exchange.write(form.usage_chunk(job.grown))
        await exchange.end_stream()

    async def _respond_complete(
        self, exchange: HttpExchange, form: CompletionFormat, job: CompletionJob, deltas: IndexedDeltas
    ) -> None:
        found: list[list[Delta]] = [[] for _ in job.grown]
        async for index, delta in deltas:
            found[index].append(delta)
        await exchange.respond(200, form.complete_response(job.grown, [_joined(each) for each in found]))


def is_greedy(asked: RequestParameters) -> bool:
    """Return True if the sampling parameters make decoding greedy and therefore deterministic."""
    return bool(asked["temperature"] == 0 or asked["top_p"] == 0 or asked["top_k"] == 1)


def is_resumable(asked: RequestParameters) -> bool:
    """Return True if the rest of a completion can be generated from its prompt and tokens alone.

    This requires greedy decoding, no log probabilities, no grammar, and no penalty or minimum length that counts
    generated tokens.
    """
    if asked.constraint is not None:  # its state is not in the prompt of the continuation
        return False
    counts = asked["presence_penalty"] or asked["frequency_penalty"] or asked["min_tokens"]
    return bool(is_greedy(asked) and not counts and asked["repetition_penalty"] == 1 and asked.top_logprobs is None)


async def merge_deltas(sources: Sequence[IndexedDeltas]) -> IndexedDeltas:
    """Yield the deltas of several completions as they arrive; closing the iterator closes all sources."""
    queue: asyncio.Queue[tuple[int, Delta] | Exception | None] = asyncio.Queue(len(sources))
    tasks = [asyncio.ensure_future(_put(queue, source)) for source in sources]
    try:
        running = len(sources)
        while running:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                running -= 1
            else:
                yield item
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _put(queue: asyncio.Queue[Any], source: IndexedDeltas) -> None:
    try:
        async with aclosing(source) as deltas:
            async for item in deltas:
                await queue.put(item)
    except Exception as error:
        await queue.put(error)
    else:
        await queue.put(None)


def _joined(deltas: Sequence[Delta]) -> Delta:
    """Concatenate the deltas of one completion."""
    logprobs = [token for delta in deltas for token in delta.logprobs or ()]
    wanted = any(delta.logprobs is not None for delta in deltas)
    finish_reason = deltas[-1].finish_reason if deltas else "stop"
    calls = tuple(call for delta in deltas for call in delta.tool_calls)
    return Delta("".join(delta.text for delta in deltas), finish_reason, logprobs if wanted else None, calls)
