# SPDX-License-Identifier: Apache-2.0
"""Triton model that generates token ids with the torch engine.

Requests join the engine's running batch when they arrive. Responses are sent from the engine's single thread, under a
lock that also protects rejections sent by `execute`.
"""

from __future__ import annotations

import threading
import traceback
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils

from trtspec.core.errors import EngineFailed, TrtspecError
from trtspec.engine.engine import Engine, warm_up
from trtspec.engine.generation.model_defaults import ModelDefaults, load_model_defaults
from trtspec.engine.generation.request import EngineRequest, SamplingOptions, Update
from trtspec.engine.generation.request_state import RequestHandle
from trtspec.engine.settings import EngineSettings
from trtspec.kernels.verifier import candidate_libraries
from trtspec.serving.triton.nvidia_compat import GUIDES
from trtspec.serving.triton.python_models import metrics as known
from trtspec.serving.triton.python_models.fields import TOKEN_NAMES
from trtspec.serving.triton.python_models.interruptions import CancellationWatcher, DisconnectCheck, DrainWatcher
from trtspec.serving.triton.python_models.metrics import EngineMetrics, RequestMetrics
from trtspec.serving.triton.python_models.responses import Responder
from trtspec.serving.triton.python_models.tensors import (
    NEUTRAL_FIELDS,
    RequestTensors,
    Settings,
    check_unsupported_inputs,
    read_sampling,
    require_neutral,
    wants_stream,
)
from trtspec.serving.triton.python_models.token_channel import TokenChannels, TokenStream
from trtspec.serving.triton.python_models.token_io import (
    TokenReader,
    UnsentTokens,
    read_constraint,
    read_edits,
    read_score_options,
)

METRICS = known.FAMILIES
LOOKAHEAD_SIZES = {
    "window": "lookahead_window_size",
    "ngram": "lookahead_ngram_size",
    "verification": "lookahead_verification_set_size",
}


class TritonPythonModel:
    """The model class; Triton calls initialize, execute and finalize by name."""

    def initialize(self, args: dict[str, str]) -> None:
        settings = Settings(args)
        self.inputs = settings.inputs
        self.decoupled = settings.decoupled
        self.reader = TokenReader(settings.tokenizer(), is_nvidia=settings.is_nvidia)
        self.defaults = ModelDefaults()
        if settings.takes_model_defaults:
            self.defaults = load_model_defaults(settings.required_path("tokenizer_dir"))
        self.lock = threading.Lock()
        self.departures = CancellationWatcher()
        self.shutdown = DrainWatcher(args["model_repository"])
        self.channels = TokenChannels(pb_utils, self.lock, self.shutdown)
        self.by_id: weakref.WeakValueDictionary[str, Generation] = weakref.WeakValueDictionary()
        self.engine = self.open_engine(settings, Path(args["model_repository"]).parents[1])
        self.metrics = EngineMetrics(pb_utils, args, METRICS, lambda: self.engine.occupancy)
        self.engine.set_step_callback(self.channels.flush)
        self.engine.set_draft_failure_callbacks(self.metrics.fallback, self.metrics.breaker)

    def open_engine(self, settings: Settings, artifact: Path) -> Engine:
        """Return the engine of an artifact, warmed up if its settings require that."""
        engine_settings = EngineSettings.from_json(settings.parameter("engine_settings"))
        engine = Engine(
            settings.required_path("gpt_model_path"),
            settings.path("draft_model_path"),
            replace(engine_settings, kernels=candidate_libraries(artifact)),
            settings.path("tokenizer_dir"),
        )
        if settings.flag("warmup"):  # Triton's own warm-up does not wait for responses of decoupled models
            warm_up(engine)
        return engine

    def execute(self, requests: list[Any]) -> list[Any] | None:
        texts = [request for request in requests if not (self.decoupled and self.channels.opens(request))]
        generations = [self.start(request) for request in texts]
        return None if self.decoupled else [generation.responder.result() for generation in generations]

    def finalize(self) -> None:
        self.engine.close()
        self.departures.close()
        self.channels.close()
        self.metrics.close()
        self.shutdown.close()

    def start(self, request: Any) -> Generation:
        """Submit a request to the engine; an invalid request is answered with an error immediately."""
        text = self.metrics.text()
        responder = Responder(pb_utils, request, self.lock, decoupled=self.decoupled, shutdown=self.shutdown)
        generation = Generation(responder, text, self.departures)
        try:
            inputs = RequestTensors(pb_utils, request)
            if inputs.scalar("stop", False):
                self.stop(request.request_id(), generation)
                return generation
            with inputs.naming(TOKEN_NAMES):
                inputs.reject_undeclared(self.inputs, "the torch engine")
                require_neutral(NEUTRAL_FIELDS, inputs, "the torch engine")
                check_unsupported_inputs(inputs, self.inputs, "the torch engine", GUIDES)
                refuse_lossy(inputs)
                parsed = self.read(inputs)
                generation.streaming = wants_stream(inputs, "streaming", decoupled=self.decoupled)
                if generation.streaming and not parsed.return_log_probs and not parsed.return_logits:
                    generation.use_channel(self.channels.stream(inputs.parameters))
                generation.unsent = UnsentTokens(inputs, parsed.prompt_ids, streaming=generation.streaming)
                self.by_id[request.request_id()] = generation
                generation.begin(self.engine.submit(parsed, generation.on_update))
        except Exception as error:
            generation.watch.close()
            generation.text.failed(error)
            responder.send_failure(error)
        return generation

    def stop(self, request_id: str, answer: Generation) -> None:
        """Stop the running request with this id and send an empty response to the stop request, like NVIDIA's model.

        Ids are chosen by clients. A request without an id cannot be stopped.
        """
        if request_id and (running := self.by_id.get(request_id)) is not None:
            running.is_stopped = True
            running.drop()
        answer.watch.close()
        answer.responder.send_tensors(list, final=True)

    def read(self, inputs: RequestTensors) -> EngineRequest:
        draft_ids, draft_logits = inputs.array("draft_input_ids"), inputs.array("draft_logits")
        text = self.reader.read(inputs)
        return EngineRequest(
            **text,
            sampling=SamplingOptions(**read_sampling(inputs, "runtime_", self.defaults.sampling)),
            draft_len=inputs.scalar("num_draft_tokens"),
            options=read_lookahead(inputs),
            draft_ids=() if draft_ids is None else tuple(draft_ids.tolist()),
            # a copy, because the server's buffer is freed after `execute`
            draft_logits=None if draft_logits is None else draft_logits.copy(),
            edits=read_edits(inputs, self.defaults.edits_for(len(text["prompt_ids"]))),
            constraint=read_constraint(inputs),
            **read_score_options(inputs),
        )


class Generation:
    """A running request: receives the engine's updates and sends the responses."""

    def __init__(self, responder: Responder, text: RequestMetrics, departures: CancellationWatcher) -> None:
        self.responder, self.text = responder, text
        self.streaming = self.is_stopped = False
        self.unsent: Any = None  # UnsentTokens, once the request's tensors are read
        self.channel: TokenStream | None = None
        self.handle: RequestHandle | None = None
        # polled in a separate thread: each poll is a message to the server, during which the engine would wait
        self.is_cancelled = DisconnectCheck(responder.is_cancelled)
        self.watch = departures.watch(self.is_cancelled, self.drop)

    def use_channel(self, channel: TokenStream | None) -> None:
        """Send new tokens to a channel, if there is one."""
        self.channel = channel
        if channel is not None:
            self.is_cancelled.has_left = channel.has_left

    def begin(self, handle: RequestHandle) -> None:
        """Store the handle that can cancel the request; cancel it at once if the client has already disconnected."""
        self.handle = handle
        if self.watch.has_left:
            self.drop()

    def on_update(self, update: Update) -> None:
        """Process an update in a thread of the engine; exceptions are logged, because they must not end that thread."""
        try:
            if update.finish_reason:
                self.watch.close()
            self.text.updated(update)
            if self.channel is not None and not update.finish_reason:
                self.channel.add(update.new_ids, update.stats)
                return
            self.unsent.add(update.new_ids, update.scores)
            if update.finish_reason == "cancelled" and not self.is_stopped:
                self.responder.send_cancelled()
            elif update.finish_reason in ("error", "refused"):
                self.responder.send_failure(update.refusal or EngineFailed(update.error or "no reason given"))
            elif update.finish_reason or self.streaming:
                self.responder.send_tensors(lambda: self.unsent.take(update.stats), final=bool(update.finish_reason))
        except Exception:
            pb_utils.Logger.log_error(f"a response was lost: {traceback.format_exc()}")
            self.drop()
            self.responder.abandon()

    def drop(self) -> None:
        if self.handle is not None:
            self.handle.cancel()


def read_lookahead(inputs: RequestTensors) -> dict[str, int]:
    """Return the lookahead sizes of a request, or {} if none is set; raise TrtspecError if only some are set."""
    sizes = {option: inputs.scalar(name) for option, name in LOOKAHEAD_SIZES.items()}
    present = {option: size for option, size in sizes.items() if size is not None}
    if present and present != sizes:
        raise TrtspecError(f"{', '.join(LOOKAHEAD_SIZES.values())} must be set together")
    return present


def refuse_lossy(inputs: RequestTensors) -> None:
    """Raise TrtspecError for an acceptance threshold in combination with draft logits, which would be lossy."""
    threshold = inputs.scalar("draft_acceptance_threshold")
    if threshold is not None and inputs.array("draft_logits") is not None:
        message = f"draft_acceptance_threshold {threshold:.6g} with draft_logits would change the text's distribution; "
        message += "the torch engine accepts exactly"
        raise TrtspecError(message, hint="remove draft_acceptance_threshold")
