# SPDX-License-Identifier: Apache-2.0
"""Token ids to token ids, on the embedded engine.

Requests join the engine's running batch as they come. Responses leave from the engine's one thread, under one lock
with the refusals of `execute`, and the final flag rides on the last of them: many senders with separate final flags
crash tritonserver 2.51.
"""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from trtspec.engines.embedded.engine import Engine
from trtspec.engines.embedded.request import EngineSettings, Request, Sampling, Stats, Update
from trtspec.engines.embedded.running import Ticket
from trtspec.errors import TrtspecError
from trtspec.triton.backend import Inputs, Pieces, Settings, failure, refuse_unsupported, respond, words_of_tensor

POLL_S = 0.1  # how often a waiting `execute` looks for cancellations
LOOKAHEAD_SIZES = {
    "window": "lookahead_window_size",
    "ngram": "lookahead_ngram_size",
    "verification": "lookahead_verification_set_size",
}


class TritonPythonModel:
    """Triton calls initialize, execute and finalize by name."""

    def initialize(self, args: dict[str, str]) -> None:
        settings = Settings(args)
        self.decoupled = settings.decoupled
        self.tokenizer = settings.tokenizer()
        self.pieces = Pieces(self.tokenizer)
        self.lock = threading.Lock()
        numbers = ("draft_len", "max_input_len", "max_seq_len", "max_num_tokens", "max_queue_size")
        self.engine = Engine.load(
            settings.path("gpt_model_path"),
            settings.path("draft_model_path"),
            EngineSettings(
                method=settings.parameter("speculation_method"),
                options=settings.json("speculation_options"),
                max_batch_size=settings.max_batch_size,
                device=settings.parameter("device"),
                dtype=settings.parameter("dtype"),
                **{name: int(settings.parameter(name)) for name in numbers},
            ),
            settings.path("tokenizer_dir"),
        )

    def execute(self, requests: list[Any]) -> list[Any] | None:
        generations = [self.start(request) for request in requests]
        return None if self.decoupled else [generation.result() for generation in generations]

    def finalize(self) -> None:
        self.engine.close()

    def start(self, request: Any) -> Generation:
        """Hand one request to the engine; a request that it cannot serve is answered here."""
        sender = request.get_response_sender() if self.decoupled else None
        generation = Generation(self.lock, sender, (sender or request).is_cancelled)
        try:
            inputs = Inputs(pb_utils, request)
            refuse_unsupported(inputs)
            refuse_lossy(inputs)
            asked = self.read(inputs)
            generation.streaming = bool(inputs.scalar("streaming", False))
            if generation.streaming and not self.decoupled:
                raise TrtspecError(
                    "stream is not served by this repository", hint="build it with serving.streaming: true"
                )
            generation.pad_id = inputs.scalar("pad_id", 0)
            if not inputs.scalar("exclude_input_in_output", True):
                generation.ids += asked.prompt_ids
            generation.ticket = self.engine.submit(asked, generation.on_update)
        except Exception as error:
            generation.send(failure(pb_utils, error), final=True)
        return generation

    def read(self, inputs: Inputs) -> Request:
        """Return what the tensors of a request ask for."""
        ids = inputs.array("input_ids")[: inputs.scalar("input_lengths")]
        draft_ids, draft_logits = inputs.array("draft_input_ids"), inputs.array("draft_logits")
        return Request(
            prompt_ids=tuple(ids.tolist()),
            max_new_tokens=inputs.scalar("request_output_len"),
            sampling=read_sampling(inputs),
            end_ids=self.end_ids(inputs.scalar("end_id")),
            stop=self.stop_words(inputs.array("stop_words_list")),
            draft_len=inputs.scalar("num_draft_tokens"),
            options=read_lookahead(inputs),
            draft_ids=() if draft_ids is None else tuple(draft_ids.tolist()),
            # the server's memory, which ends with `execute`
            draft_logits=None if draft_logits is None else draft_logits.copy(),
            return_logits=inputs.scalar("return_generation_logits", False),
        )

    def end_ids(self, asked: int | None) -> tuple[int, ...]:
        """Return the ids that end a text: one of the tokenizer's own stands for all of them, -1 for none."""
        own = self.tokenizer.end_ids
        return own if asked is None or asked in own else (() if asked < 0 else (asked,))

    def stop_words(self, tensor: np.ndarray | None) -> tuple[str, ...]:
        return () if tensor is None else tuple(self.pieces.decode(ids) for ids in words_of_tensor(tensor))


class Generation:
    """One request on its way: collects what the engine says and answers the client."""

    def __init__(self, lock: threading.Lock, sender: Any | None, is_cancelled: Callable[[], bool]) -> None:
        self.lock = lock
        self.sender = sender
        self.is_cancelled = is_cancelled
        self.streaming = False
        self.pad_id = 0
        self.ids: list[int] = []  # not sent yet, like their logits
        self.logits: list[np.ndarray] = []
        self.sent = False
        self.ticket: Ticket | None = None
        self.done = threading.Event()
        self.response: Any = None

    def on_update(self, update: Update) -> None:
        """Take news from the engine's thread, which no mistake made here may end."""
        try:
            self.ids += update.new_ids
            if update.logits is not None:
                self.logits.append(update.logits)
            if update.finish_reason in ("error", "cancelled"):
                self.send(refused(update), final=True)
            elif update.finish_reason or self.streaming:
                self.send(respond(pb_utils, lambda: self.tensors(update.stats)), final=bool(update.finish_reason))
            if not update.finish_reason and self.is_cancelled():
                self.drop()
        except Exception:
            pb_utils.Logger.log_error(f"a response was lost: {traceback.format_exc()}")
            self.drop()
            self.done.set()

    def send(self, response: Any, final: bool) -> None:
        """Send one response; where only one may be sent, keep it for `result`."""
        flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if final else 0
        self.response = response
        if self.sender is not None:
            with self.lock:
                self.sender.send(response, flags=flags)
        if final:
            self.done.set()

    def result(self) -> Any:
        """Return the response once there is one."""
        while not self.done.wait(POLL_S):
            if self.is_cancelled():
                self.drop()
        return self.response

    def drop(self) -> None:
        if self.ticket is not None:
            self.ticket.cancel()

    def tensors(self, stats: Stats) -> list[tuple[str, np.ndarray]]:
        """Return the output tensors for the ids not sent yet; an empty rest is one pad id of length 0."""
        ids, self.ids = self.ids, []
        logits, self.logits = self.logits, []
        continuation, self.sent = self.sent, True
        return [
            ("output_ids", np.array([[ids or [self.pad_id]]], np.int32)),
            ("sequence_length", np.array([[len(ids)]], np.int32)),
            *([("generation_logits", np.concatenate(logits)[None, None])] if logits else []),
            ("continuation", np.array([[continuation]])),
            ("sequence_index", np.array([[0]], np.int32)),
            ("acceptance_rate", np.array([[stats.acceptance_rate]], np.float32)),
            ("total_accepted_draft_tokens", np.array([[stats.accepted]], np.int32)),
            ("total_draft_tokens", np.array([[stats.drafted]], np.int32)),
            ("num_input_tokens", np.array([[stats.prompt_tokens]], np.int32)),
            ("num_output_tokens", np.array([[stats.new_tokens]], np.int32)),
        ]


def read_sampling(inputs: Inputs) -> Sampling:
    """Return how to sample: greedy without a temperature, unless top_k or top_p ask for more (then it is 1)."""
    top_k, top_p = inputs.scalar("runtime_top_k", 0), inputs.scalar("runtime_top_p", 0.0) or 1.0
    temperature = inputs.scalar("temperature", 1.0 if top_k > 1 or top_p < 1.0 else 0.0)
    return Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=inputs.scalar("seed", 0))


def read_lookahead(inputs: Inputs) -> dict[str, int]:
    """Return the sizes of lookahead that a request lowers: all three or, for most requests, none."""
    sizes = {option: inputs.scalar(name) for option, name in LOOKAHEAD_SIZES.items()}
    given = {option: size for option, size in sizes.items() if size is not None}
    if given and given != sizes:
        raise TrtspecError(f"{', '.join(LOOKAHEAD_SIZES.values())} come together or not at all")
    return given


def refuse_lossy(inputs: Inputs) -> None:
    """Raise for a constant threshold of acceptance by draft logits, in the place of a random number for each token."""
    threshold = inputs.scalar("draft_acceptance_threshold")
    if threshold is not None and inputs.array("draft_logits") is not None:
        raise TrtspecError(
            f"draft_acceptance_threshold {threshold:.6g} with draft_logits would change the text's law; "
            "the embedded engine accepts exactly",
            hint="leave it out",
        )


def refused(update: Update) -> Any:
    code = pb_utils.TritonError.CANCELLED if update.finish_reason == "cancelled" else pb_utils.TritonError.INTERNAL
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(update.error or "the request was cancelled", code))
