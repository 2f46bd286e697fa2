# SPDX-License-Identifier: Apache-2.0
"""Token ids to token ids, on the torch engine.

Requests join the engine's running batch as they come. Responses leave from the engine's one thread, under one lock with
the refusals of `execute`.
"""

from __future__ import annotations

import threading
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import triton_python_backend_utils as pb_utils

from trtspec.errors import TrtspecError
from trtspec.generation.request import Request, SamplingOptions, Update
from trtspec.generation.running import RequestHandle
from trtspec.kernels.verifier import libraries_of
from trtspec.torch_engine.engine import Engine
from trtspec.torch_engine.settings import EngineSettings
from trtspec.triton.python_models.responses import Responder
from trtspec.triton.python_models.tensors import (
    RequestTensors,
    Settings,
    read_sampling,
    refuse_unsupported,
    wants_stream,
)
from trtspec.triton.python_models.token_model import TokenReader, Unsent

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
        self.reader = TokenReader(settings.tokenizer())
        self.lock = threading.Lock()
        engine_settings = EngineSettings.from_json(settings.parameter("engine_settings"))
        artifact = Path(args["model_repository"]).parents[1]
        self.engine = Engine.load(
            settings.required_path("gpt_model_path"),
            settings.path("draft_model_path"),
            replace(engine_settings, kernels=libraries_of(artifact)),
            settings.path("tokenizer_dir"),
        )

    def execute(self, requests: list[Any]) -> list[Any] | None:
        generations = [self.start(request) for request in requests]
        return None if self.decoupled else [generation.result() for generation in generations]

    def finalize(self) -> None:
        self.engine.close()

    def start(self, request: Any) -> Generation:
        """Hand one request to the engine; a request that it cannot serve is answered here."""
        generation = Generation(Responder(pb_utils, request, self.lock, decoupled=self.decoupled))
        try:
            inputs = RequestTensors(pb_utils, request)
            refuse_unsupported(inputs)
            refuse_lossy(inputs)
            asked = self.read(inputs)
            generation.streaming = wants_stream(inputs, "streaming", decoupled=self.decoupled)
            generation.unsent = Unsent(inputs, asked.prompt_ids)
            generation.handle = self.engine.submit(asked, generation.on_update)
        except Exception as error:
            generation.responder.send_failure(error)
        return generation

    def read(self, inputs: RequestTensors) -> Request:
        """Return what the tensors of a request ask for."""
        draft_ids, draft_logits = inputs.array("draft_input_ids"), inputs.array("draft_logits")
        return Request(
            **self.reader.read(inputs),
            sampling=SamplingOptions(**read_sampling(inputs, "runtime_")),
            draft_len=inputs.scalar("num_draft_tokens"),
            options=read_lookahead(inputs),
            draft_ids=() if draft_ids is None else tuple(draft_ids.tolist()),
            # the server's memory, which ends with `execute`
            draft_logits=None if draft_logits is None else draft_logits.copy(),
            return_logits=inputs.scalar("return_generation_logits", False),
        )


class Generation:
    """One request on its way: collects what the engine says and answers the client."""

    def __init__(self, responder: Responder) -> None:
        self.responder = responder
        self.streaming = False
        self.unsent: Any = None  # Unsent, once the request's tensors are read
        self.handle: RequestHandle | None = None

    def on_update(self, update: Update) -> None:
        """Take news from the engine's thread, which no mistake made here may end."""
        try:
            self.unsent.add(update.new_ids, update.logits)
            if update.finish_reason == "cancelled":
                self.responder.send_cancelled()
            elif update.finish_reason == "error":
                self.responder.send(refused(update), final=True)
            elif update.finish_reason or self.streaming:
                self.responder.send_tensors(lambda: self.unsent.take(update.stats), final=bool(update.finish_reason))
            if not update.finish_reason and self.responder.is_cancelled():
                self.drop()
        except Exception:
            pb_utils.Logger.log_error(f"a response was lost: {traceback.format_exc()}")
            self.drop()
            self.responder.abandon()

    def result(self) -> Any:
        """Return the response once there is one."""
        return self.responder.result(self.drop)

    def drop(self) -> None:
        if self.handle is not None:
            self.handle.cancel()


def read_lookahead(inputs: RequestTensors) -> dict[str, int]:
    """Return the sizes of lookahead that a request lowers: all three or, for most requests, none."""
    sizes = {option: inputs.scalar(name) for option, name in LOOKAHEAD_SIZES.items()}
    given = {option: size for option, size in sizes.items() if size is not None}
    if given and given != sizes:
        raise TrtspecError(f"{', '.join(LOOKAHEAD_SIZES.values())} come together or not at all")
    return given


def refuse_lossy(inputs: RequestTensors) -> None:
    """Raise for a constant threshold of acceptance by draft logits, in the place of a random number for each token."""
    threshold = inputs.scalar("draft_acceptance_threshold")
    if threshold is not None and inputs.array("draft_logits") is not None:
        raise TrtspecError(
            f"draft_acceptance_threshold {threshold:.6g} with draft_logits would change the text's distribution; "
            "the torch engine accepts exactly",
            hint="leave it out",
        )


def refused(update: Update) -> Any:
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(update.error, pb_utils.TritonError.INTERNAL))
