# SPDX-License-Identifier: Apache-2.0
"""The engine: continuous batching of requests at different progress, each step drafted and verified.

One thread loads and runs the model and calls every request's `on_update`. It does so from the first tensor on,
because each thread that computes gets OpenMP workers of its own, and with more of them than cores all of them sleep
between operations (three times slower steps were measured on two cores).

Running requests are the rows 0 .. n-1 of the KV cache without gaps, so a step works on views; when one ends, the last
row takes its place.
"""

from __future__ import annotations

import atexit
import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from trtspec.checkpoint.tokenizer import Tokenizer
from trtspec.engines.embedded.decoder import Decoder
from trtspec.engines.embedded.device import choose_device
from trtspec.engines.embedded.drafters.base import Draft, Drafter, Outcome, Room, Sampling, Setup
from trtspec.engines.embedded.prefill import prefill
from trtspec.engines.embedded.request import EngineSettings, Request, Result, Update
from trtspec.engines.embedded.running import Running, Ticket, check_request
from trtspec.engines.embedded.tensors import TORCH_DTYPES
from trtspec.errors import TrtspecError
from trtspec.kernels.chain import verify_chain
from trtspec.kernels.sampling import Warp, pick
from trtspec.kernels.tree import Typical, verify_tree
from trtspec.kernels.verdict import Verdict
from trtspec.methods.base import Extent, LossyOptions, Options, find_method
from trtspec.registry import find

log = logging.getLogger(__name__)


class Engine:
    """Runs a converted checkpoint; made by `Engine.load`."""

    def __init__(
        self,
        load: Callable[[], tuple[Decoder, Drafter]],
        settings: EngineSettings,
        extent: Extent,
        options: Options,
        tokenizer: Tokenizer | None,
    ) -> None:
        self.settings = settings
        self.extent = extent
        self.tokenizer = tokenizer
        self._typical = _typical(options)
        self._waiting: deque[Running] = deque()
        self._running: list[Running] = []
        self._changed = threading.Condition()
        self._closed: str | None = None
        loaded: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(load, loaded), name="trtspec-engine", daemon=True)
        self._thread.start()
        loaded.result()
        atexit.register(self.close)  # a thread inside torch must not outlive the interpreter

    @classmethod
    def load(cls, target: Path, draft: Path | None, settings: EngineSettings, tokenizer: Path | None = None) -> Engine:
        """Load converted checkpoints.

        Args:
            target: a TensorRT-LLM checkpoint directory.
            draft: what the method drafts with; None for methods that need nothing.
            settings: see EngineSettings.
            tokenizer: a directory with tokenizer.json; needed for stop texts and for updates of whole characters.

        Raises:
            TrtspecError: for an unknown method, a missing device, or checkpoints that do not fit each other.
        """
        method = find_method(settings.method)
        drafter_class = find("trtspec.engines.embedded.drafters", "DRAFTER", settings.method, "speculation method")
        options = method.parse(dict(settings.options))
        extent = method.extent(options, settings.draft_len)
        device = choose_device(settings.device)
        # A step may write this many positions beyond the longest text, which are then overwritten.
        max_len = settings.max_seq_len + extent.nodes + 2

        def load_models() -> tuple[Decoder, Drafter]:
            dtype = compute_dtype(settings.dtype, device, target)
            model = Decoder(target, settings.max_batch_size, max_len, device, dtype)
            if misfits := method.misfits(options, model.config):
                raise TrtspecError(misfits[0].message, where=f"speculation.options.{misfits[0].code}")
            room = Room(settings.max_batch_size, max_len, device, dtype)
            drafter = drafter_class(Setup(model, draft, room, options, extent))
            _check_pair(model, drafter, settings)
            return model, drafter

        return cls(load_models, settings, extent, options, Tokenizer(tokenizer) if tokenizer else None)

    def submit(self, request: Request, on_update: Callable[[Update], None]) -> Ticket:
        """Queue a request; `on_update` is called from the engine's thread until an update has a finish reason.

        Raises TrtspecError for a request that cannot be served, a full queue, or a closed engine.
        """
        check_request(request, self.settings, self._target.config.vocab_size, self.tokenizer is not None)
        running = Running(request, on_update, self.tokenizer)
        with self._changed:
            if len(self._waiting) >= self.settings.max_queue_size:
                raise TrtspecError(f"the queue is full: {len(self._waiting)} requests wait (serving.max_queue_size)")
            self._enqueue(running)
        return running.ticket

    def generate(self, requests: Sequence[Request]) -> list[Result]:
        """Run requests to their end and return their results in order; the queue's bound does not apply.

        Raises TrtspecError for a request that cannot be served, or if the engine failed.
        """
        for request in requests:
            check_request(request, self.settings, self._target.config.vocab_size, self.tokenizer is not None)
        collectors = [_Collector() for _ in requests]
        with self._changed:
            for request, collector in zip(requests, collectors, strict=True):
                self._enqueue(Running(request, collector, None if not request.stop else self.tokenizer))
        return [collector.result() for collector in collectors]

    def close(self) -> None:
        """End all requests as cancelled and stop the thread."""
        with self._changed:
            self._closed = self._closed or "the engine was closed"
            self._changed.notify()
        self._thread.join()
        atexit.unregister(self.close)

    def _enqueue(self, running: Running) -> None:
        if self._closed:
            raise TrtspecError(self._closed)
        self._waiting.append(running)
        self._changed.notify()

    @torch.inference_mode()
    def _run(self, load: Callable[[], tuple[Decoder, Drafter]], loaded: Future[None]) -> None:
        try:
            self._target, self._drafter = load()
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
                    self._decode()
        except Exception as failure:
            log.exception("the engine failed")
            reason, error = "error", f"the engine failed: {failure}"
        with self._changed:
            self._closed = self._closed or error
            left = [*self._running, *self._waiting]
        for running in left:
            self._tell(running, reason, error)

    def _wait(self) -> bool:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._running or self._closed)
            return self._closed is None

    def _drop_cancelled(self) -> None:
        with self._changed:
            dropped = [running for running in self._waiting if running.ticket.cancelled]
            self._waiting = deque(running for running in self._waiting if not running.ticket.cancelled)
        for running in dropped:
            self._tell(running, "cancelled")
        cancelled = ["cancelled" if running.ticket.cancelled else None for running in self._running]
        if any(cancelled):
            self._settle(cancelled)

    def _admit(self) -> None:
        """Prefill as many waiting requests as there are free rows and one step has tokens for."""
        new: list[Running] = []
        with self._changed:
            longest = 0
            while self._waiting and len(self._running) + len(new) < self.settings.max_batch_size:
                longest = max(longest, len(self._waiting[0].text))
                if new and longest * (len(new) + 1) > self.settings.max_num_tokens:
                    break
                new.append(self._waiting.popleft())
        if not new:
            return
        first_row = len(self._running)
        self._running += new
        prompts = [running.text for running in new]
        target, drafter, max_tokens = self._target, self._drafter, self.settings.max_num_tokens
        drafter.begin(prompts, first_row, max_tokens)
        logits = prefill(target, prompts, first_row, max_tokens, drafter.taps, drafter.read)
        if warp := self._warp(new):
            tokens = pick(warp.probs(logits), self._uniforms(new, 1)[:, 0])
        else:
            tokens = logits.argmax(-1)
        reasons = [running.begin(token) for running, token in zip(new, tokens.tolist(), strict=True)]
        self._settle([*[None] * first_row, *reasons])

    def _decode(self) -> None:
        """Draft for every running request, verify all drafts in one pass of the target, and hand out what is new."""
        running, target = self._running, self._target
        limits = [request.draft_len(self.extent.depth) for request in running]
        texts = [request.text for request in running]
        starts = [len(text) - 1 for text in texts]
        warp, nodes = self._warp(running), self.extent.nodes
        uniforms = self._uniforms(running, 2 * nodes + 1) if warp else None
        sampling = Sampling(warp, uniforms[:, :nodes]) if warp and uniforms is not None else None
        last = torch.tensor([text[-1:] for text in texts], device=target.device)
        draft = self._drafter.propose(texts, max(limits), sampling) if any(limits) else Draft(last[:, :0])
        tokens = torch.cat([last, draft.tokens], 1)
        if draft.tree is None:
            window = target.windows.chain(starts, tokens.shape[1])
        else:
            window = target.windows.tree(starts, draft.tree)
        flat, features = target.tapped(tokens, window, self._drafter.taps)
        logits = flat.view(*tokens.shape, -1)
        verdicts, drafted = self._verify(logits, tokens, draft, limits, warp, uniforms)
        target.cache.compact(
            [
                (row, starts[row] + node, starts[row] + depth)
                for row, verdict in enumerate(verdicts)
                for depth, node in enumerate(verdict.path, 1)
                if node != depth
            ]
        )
        if features is not None:
            features = features.view(*tokens.shape, -1)
        self._drafter.observe(Outcome(verdicts, logits, features))
        self._settle(
            [
                request.advance(count, [row[node] for node in verdict.path], verdict.token)
                for request, row, verdict, count in zip(running, tokens.tolist(), verdicts, drafted, strict=True)
            ]
        )

    def _verify(
        self,
        logits: Tensor,
        tokens: Tensor,
        draft: Draft,
        limits: list[int],
        warp: Warp | None,
        uniforms: Tensor | None,
    ) -> tuple[list[Verdict], list[int]]:
        """Return each row's verdict and how many tokens were drafted for it.

        The first uniform behind those of the draft draws the next token, the others belong to the nodes in order.
        """
        nodes, width = self.extent.nodes, tokens.shape[1]
        if draft.tree is not None:
            ours = None if uniforms is None else uniforms[:, nodes : nodes + width]
            verdicts = verify_tree(logits, tokens, draft.tree, limits, warp, draft.probs, ours, self._typical)
            return verdicts, draft.tree.count(limits)
        lens = [min(pair) for pair in zip(limits, draft.lens or [width - 1] * len(limits), strict=True)]
        ours = None
        if uniforms is not None:
            ours = torch.cat([uniforms[:, nodes + 1 : nodes + width], uniforms[:, nodes : nodes + 1]], 1)
        return verify_chain(logits, tokens[:, 1:], lens, warp, draft.probs, ours), lens

    def _settle(self, reasons: Sequence[str | None]) -> None:
        """Tell every running request its news, and free the rows of those that have a finish reason."""
        for running, reason in zip(self._running, reasons, strict=True):
            self._tell(running, reason)
        for row in reversed([row for row, reason in enumerate(reasons) if reason]):
            last = self._running.pop()
            if row < len(self._running):
                self._running[row] = last
                self._target.cache.move_row(len(self._running), row, len(last.text))
                self._drafter.move_row(len(self._running), row, len(last.text))

    def _tell(self, running: Running, reason: str | None, error: str | None = None) -> None:
        try:
            running.update(reason, error)
        except Exception:
            # the caller's function failed; the other requests must not
            log.exception("an update was not taken; its request is cancelled")
            running.ticket.cancel()

    def _warp(self, batch: list[Running]) -> Warp | None:
        """Return how the rows sample, or None where all are greedy."""
        if not any(running.samples for running in batch):
            return None
        how = [running.request.sampling for running in batch]
        temperature = [s.temperature if running.samples else 0.0 for s, running in zip(how, batch, strict=True)]
        device = self._target.device
        return Warp(
            torch.tensor(temperature, device=device),
            torch.tensor([s.top_k for s in how], device=device),
            torch.tensor([s.top_p for s in how], device=device),
            any(s.top_k or s.top_p < 1.0 for s in how),
        )

    def _uniforms(self, batch: list[Running], count: int) -> Tensor:
        """Return [rows, count] in [0, 1); each request draws its own."""
        drawn = np.stack([running.uniforms(count) for running in batch])
        return torch.from_numpy(drawn).to(self._target.device)


class _Collector:
    """Gathers a request's updates into a Result."""

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._last: Update | None = None
        self._done = threading.Event()

    def __call__(self, update: Update) -> None:
        self._ids += update.new_ids
        if update.finish_reason:
            self._last = update
            self._done.set()

    def result(self) -> Result:
        self._done.wait()
        last = self._last
        if last is None or last.finish_reason is None or last.finish_reason == "error":
            raise TrtspecError(last.error if last and last.error else "the engine gave no result")
        return Result(tuple(self._ids), last.finish_reason, last.stats)


def compute_dtype(wanted: str, device: torch.device, target: Path) -> torch.dtype:
    """Return what a checkpoint is computed in on a device: as wanted, or for "auto" as suits both."""
    if wanted != "auto":
        return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}[wanted]
    from trtspec.checkpoint.trtllm import DTYPES, load_checkpoint

    checkpoint = load_checkpoint(target)
    if device.type != "cpu":
        return TORCH_DTYPES[DTYPES[checkpoint.config.dtype]]
    # Rounding to FP8 blows a difference of one float32 ulp, as between one row and six, up to a step of e4m3: at 1e-16
    # the text with and without speculation is the same again.
    quantized = checkpoint.quantization.algo or checkpoint.quantization.kv_cache_algo
    # float32 is at batch 1 faster than bf16 on the CPUs measured (docs/log.md), and exact to 1e-6
    return torch.float64 if quantized else torch.float32


def _check_pair(model: Decoder, drafter: Drafter, settings: EngineSettings) -> None:
    limit = model.config.exact_positions
    if settings.max_seq_len > limit:
        what = "positions" if limit == model.config.max_positions else "positions of sliding-window attention"
        raise TrtspecError(f"max_seq_len {settings.max_seq_len} is more than the target's {limit} {what}")
    vocab = drafter.vocab_size
    if vocab not in (None, model.config.vocab_size):
        raise TrtspecError(f"the draft has {vocab} vocabulary entries, the target {model.config.vocab_size}")


def _typical(options: Options) -> Typical | None:
    if isinstance(options, LossyOptions) and options.acceptance == "typical":
        return Typical(options.posterior_threshold, options.posterior_alpha)
    return None
