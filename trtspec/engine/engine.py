# SPDX-License-Identifier: Apache-2.0
"""The engine: continuous batching of requests; each step drafts tokens and verifies them.

One thread loads the model, runs it and calls every request's `on_update`. The same thread loads and runs the model
because every computing thread gets its own OpenMP workers, and with more workers than cores all of them sleep between
operations (steps were measured to be three times slower on two cores).

Running requests occupy rows 0 .. n-1 of the KV cache without gaps, so that a step works on views. When a request ends,
the last row moves to its place.

The warm-up runs one request and a full batch, so that the first client does not wait for one-time work: the first
prefill, draft and verification load and select kernels, allocate memory and start threads.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from operator import itemgetter
from pathlib import Path

import torch

from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.core.errors import EngineFailed, Overloaded, TrtspecError
from trtspec.engine.generation.grammar import GrammarMatcher
from trtspec.engine.generation.grammar_compiler import CompiledGrammar, GrammarCompiler
from trtspec.engine.generation.request import (
    EngineRequest,
    EngineResult,
    SamplingOptions,
    Scores,
    Update,
    check_request,
)
from trtspec.engine.generation.request_state import RequestHandle, RunningRequest
from trtspec.engine.prefill import group_by_length
from trtspec.engine.settings import EngineSettings
from trtspec.engine.speculator import Speculator

CLOSE_TIMEOUT_S = 300.0  # time for the current step to finish

log = logging.getLogger(__name__)
WARMUP_PROMPT_LEN = 16
WARMUP_PERIOD = 4  # the prompt repeats itself, so that n-gram drafters find matches
WARMUP_STEPS = 2  # decode steps with a draft, regardless of acceptance


class Engine:
    """Engine that runs a converted TensorRT-LLM checkpoint; `draft` is None for methods without a draft model.

    `tokenizer` is a directory with tokenizer.json, which is required for stop texts and for updates of whole
    characters. Raises TrtspecError if the method is unknown, the device is missing, or the checkpoints do not match.
    """

    def __init__(
        self, target: Path, draft: Path | None, settings: EngineSettings, tokenizer: Path | None = None
    ) -> None:
        self.settings = settings
        self.tokenizer = Tokenizer(tokenizer) if tokenizer else None
        self._compiling: list[RunningRequest] = []  # their grammars are not compiled yet
        self._waiting: deque[RunningRequest] = deque()
        self._entering: list[RunningRequest] = []
        self._running: list[RunningRequest] = []
        self._changed = threading.Condition()
        self._closed: str | None = None
        self._on_step: Callable[[], None] = lambda: None
        loaded: Future[None] = Future()
        self._thread = threading.Thread(
            target=self._run, args=(target, draft, loaded), name="trtspec-engine", daemon=True
        )
        self._thread.start()
        loaded.result()
        self._grammars = GrammarCompiler(self.tokenizer, self.vocab_size) if self.tokenizer else None
        atexit.register(self.close)  # a thread inside torch must not outlive the interpreter

    @property
    def vocab_size(self) -> int:
        return self.speculator.target.config.vocab_size

    def submit(self, request: EngineRequest, on_update: Callable[[Update], None]) -> RequestHandle:
        """Queue a request; the engine's thread calls `on_update` until an update has a finish reason.

        A constraint that is new is compiled by another thread, meanwhile the request waits. That thread calls
        `on_update` with the reason "refused" if the constraint cannot be compiled.

        Raises TrtspecError if the request cannot be served, the queue is full or the engine is closed.
        """
        self._check(request)
        running = RunningRequest(request, on_update, self.tokenizer)
        grammar = self._grammar(request)
        if grammar is not None and grammar.done():
            running.matcher, grammar = grammar.result().matcher(request.end_ids), None
        with self._changed:
            if sum(self.occupancy) >= self.settings.max_batch_size + self.settings.max_queue_size:
                raise Overloaded(self.settings.max_queue_size)
            if grammar is None:
                self._enqueue(running)
            elif self._closed:
                raise EngineFailed(self._closed)
            else:
                self._compiling.append(running)
        if grammar is not None:
            grammar.add_done_callback(partial(self._compiled, running))
        return running.handle

    def set_draft_failure_callbacks(self, on_fallback: Callable[[str], None], on_open: Callable[[bool], None]) -> None:
        """Set the callbacks for failures of the drafter.

        `on_fallback` receives the reason when a request continues without drafts, and `on_open` the new state of the
        circuit breaker.
        """
        guard = self.speculator.guard
        guard.on_fallback, guard.breaker.on_change = on_fallback, on_open

    def set_step_callback(self, on_step: Callable[[], None]) -> None:
        """Set the function that the engine's thread calls after the updates of each step; it must not raise."""
        self._on_step = on_step

    @property
    def occupancy(self) -> tuple[int, int]:
        """Return (number of running requests, number of waiting requests)."""
        return len(self._running), len(self._waiting) + len(self._compiling)

    def generate(self, requests: Sequence[EngineRequest]) -> list[EngineResult]:
        """Run requests to completion and return their results in order; the queue limit does not apply.

        Raises TrtspecError if a request cannot be served or the engine failed.
        """
        for request in requests:
            self._check(request)
        matchers = [self._matcher(request) for request in requests]  # one by one: they must not fill the queue
        collectors = [_ResultCollector() for _ in requests]
        with self._changed:
            for request, collector, matcher in zip(requests, collectors, matchers, strict=True):
                tokenizer = self.tokenizer if request.stop else None
                self._enqueue(RunningRequest(request, collector, tokenizer, matcher))
        return [collector.result() for collector in collectors]

    def close(self) -> None:
        """Cancel all requests, then stop the engine's thread and wait up to 300 s for it."""
        with self._changed:
            self._closed = self._closed or "the engine was closed"
            self._changed.notify()
        self._thread.join(CLOSE_TIMEOUT_S)
        if self._grammars:
            self._grammars.close()
        atexit.unregister(self.close)

    def _check(self, request: EngineRequest) -> None:
        if request.constraint is not None and self.settings.simulated_acceptance:
            raise TrtspecError("guides cannot be used with simulated acceptance, which ignores them")
        check_request(request, self.settings.limits, self.vocab_size, self.tokenizer is not None)
        self.speculator.request_options(request)

    def _matcher(self, request: EngineRequest) -> GrammarMatcher | None:
        """Return the state of an empty text in the request's grammar, None without a constraint."""
        grammar = self._grammar(request)
        return None if grammar is None else grammar.result().matcher(request.end_ids)

    def _grammar(self, request: EngineRequest) -> Future[CompiledGrammar] | None:
        """Return the future of a request's grammar, None without a constraint."""
        if request.constraint is None or self._grammars is None:
            return None
        return self._grammars.submit(request.constraint)

    def _compiled(self, running: RunningRequest, grammar: Future[CompiledGrammar]) -> None:
        """Queue a request whose grammar is compiled, or refuse it; called once by the compiler's thread."""
        error = grammar.exception()
        if error is None:
            running.matcher = grammar.result().matcher(running.request.end_ids)
        with self._changed:
            if running not in self._compiling:  # the engine ended and has cancelled it
                return
            self._compiling.remove(running)
            if error is None:  # also after `close`: the engine's thread still cancels what waits
                self._waiting.append(running)
                self._changed.notify()
        if error is not None:
            running.refuse(error)

    def _enqueue(self, running: RunningRequest) -> None:
        if self._closed:
            raise EngineFailed(self._closed)
        self._waiting.append(running)
        self._changed.notify()

    @torch.inference_mode()
    def _run(self, target: Path, draft: Path | None, loaded: Future[None]) -> None:
        try:
            self.speculator = Speculator.load(target, draft, self.settings)
        except BaseException as failure:
            loaded.set_exception(failure)
            return
        loaded.set_result(None)
        reason, error = "cancelled", None
        try:
            while self._wait():
                self._drop_cancelled()
                self._admit()
                if self._running:
                    progress = self.speculator.step(self._running)
                    self._finish_step([row.advance(one) for row, one in zip(self._running, progress, strict=True)])
        except Exception as failure:
            log.exception("the engine failed")
            reason, error = "error", f"the engine failed: {failure}"
        with self._changed:
            self._closed = self._closed or error
            left = [*self._running, *self._entering, *self._waiting, *self._compiling]
            self._compiling = []
        for running in left:
            self._notify(running, reason, error)

    def _wait(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._running or self._closed)
            return self._closed is None

    def _drop_cancelled(self) -> None:
        with self._changed:
            dropped = [running for running in self._waiting if running.handle.cancelled]
            self._waiting = deque(running for running in self._waiting if not running.handle.cancelled)
        for running in dropped:
            self._notify(running, "cancelled")
        cancelled = ["cancelled" if running.handle.cancelled else None for running in self._running]
        if any(cancelled):
            self._finish_step(cancelled)

    def _admit(self) -> None:
        """Prefill as many waiting requests as the free rows and the token limit of a step allow."""
        new: list[tuple[int, RunningRequest]] = []  # with the number of tokens to compute
        with self._changed:
            tokens = 0
            while self._waiting and len(self._running) + len(new) < self.settings.max_batch_size:
                unread = self.speculator.unread(self._waiting[0])
                tokens += unread
                if new and tokens > self.settings.max_num_tokens:
                    break
                new.append((unread, self._waiting.popleft()))
        new.sort(key=itemgetter(0))
        entering = [running for _, running in new]
        for running in entering:
            running.admit()
        for first, last in group_by_length([unread for unread, _ in new]):
            self._entering = entering[last:]
            self._begin(entering[first:last])

    def _begin(self, new: list[RunningRequest]) -> None:
        """Prefill requests in one pass of the target; they become the last rows."""
        first_row = len(self._running)
        self._running += new
        progress = self.speculator.prefill(new, first_row, self.settings.max_num_tokens)
        reasons = [running.begin(one) for running, one in zip(new, progress, strict=True)]
        self._finish_step([*[None] * first_row, *reasons])

    def _finish_step(self, reasons: Sequence[str | None]) -> None:
        """Send every running request its update, and free the rows of finished requests."""
        for running, reason in zip(self._running, reasons, strict=True):
            self._notify(running, reason)
        self._on_step()
        for row in reversed([row for row, reason in enumerate(reasons) if reason]):
            self.speculator.retain(row, self._running[row].text)
            last = self._running.pop()
            if row < len(self._running):
                self._running[row] = last
                self.speculator.move_row(len(self._running), row, len(last.text))

    def _notify(self, running: RunningRequest, reason: str | None, error: str | None = None) -> None:
        try:
            running.update(reason, error)
        except Exception:
            # the caller's function failed; other requests must continue
            log.exception("an update callback failed; its request is cancelled")
            running.handle.cancel()


class _ResultCollector:
    """Callback that collects a request's updates into a result."""

    def __init__(self) -> None:
        self._updates: list[Update] = []
        self._done = threading.Event()

    def __call__(self, update: Update) -> None:
        self._updates.append(update)
        if update.finish_reason:
            self._done.set()

    def result(self) -> EngineResult:
        self._done.wait()  # unbounded: the engine's thread finishes every request, and all of them when it fails
        last = self._updates[-1]
        if last.finish_reason is None or last.finish_reason == "error":
            raise TrtspecError(last.error or "the engine returned no result")
        ids = tuple(token for update in self._updates for token in update.new_ids)
        scores = [update.scores for update in self._updates if update.scores is not None]
        return EngineResult(ids, last.finish_reason, last.stats, Scores.joined(scores) if scores else None)


def warm_up(engine: Engine) -> None:
    """Run the warm-up batches; raise TrtspecError if the engine fails, for example because memory is exhausted."""
    for batch in warmup_batches(engine.settings, engine.vocab_size):
        begun = time.monotonic()
        engine.generate(batch)
        log.info("warmed up with %d texts in %.2f s", len(batch), time.monotonic() - begun)


def warmup_batches(settings: EngineSettings, vocab_size: int) -> list[list[EngineRequest]]:
    """Return the requests of each batch: a single request, and a full batch in which every second request samples."""
    longest = min(settings.max_input_len or settings.max_seq_len, settings.max_seq_len - 1)
    prompt_len = min(WARMUP_PROMPT_LEN, longest)
    prompt = tuple(1 % vocab_size + at % WARMUP_PERIOD % (vocab_size - 1) for at in range(prompt_len))
    new_tokens = min(WARMUP_STEPS * (settings.draft_len + 1), settings.max_seq_len - prompt_len)
    sampling = [SamplingOptions(), SamplingOptions(temperature=1.0)]
    sizes = [1, settings.max_batch_size] if settings.max_batch_size > 1 else [1]
    return [[EngineRequest(prompt, new_tokens, sampling[row % 2]) for row in range(size)] for size in sizes]
