# SPDX-License-Identifier: Apache-2.0
"""The `tensorrt_llm_bls` model: text in, text out, by speculative decoding with other models of the server.

A draft model or a prompt lookup drafts, and a target verifies; otherwise, the target works alone. Each
request has its own thread, which waits for the models. The models batch the calls of all threads.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator
from contextlib import closing
from functools import partial
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from trtspec.core.errors import TrtspecError
from trtspec.engine.generation.circuit_breaker import CircuitBreaker
from trtspec.engine.generation.request import SamplingOptions, Stats
from trtspec.engine.generation.suffixes import SuffixIndex
from trtspec.engine.generation.text import StopConditions, TextStream
from trtspec.methods.base import find_method
from trtspec.serving.triton.python_models import metrics as known
from trtspec.serving.triton.python_models.adaptive_draft_len import AdaptiveDraftLen
from trtspec.serving.triton.python_models.bls import (
    LOOKAHEAD_SIZES,
    DecodeStep,
    DraftFailed,
    FallbackDrafter,
    GenerationRequest,
    LookupDrafter,
    ModelAnswer,
    ModelCall,
    ModelFn,
    RemoteModelDrafter,
    ServerModel,
    TokenDrafter,
    generate,
    kill_stopped,
)
from trtspec.serving.triton.python_models.fields import TEXT_NAMES
from trtspec.serving.triton.python_models.grpc_client import ModelError, ReconnectingStream, local_server_client
from trtspec.serving.triton.python_models.metrics import EngineMetrics, RequestMetrics
from trtspec.serving.triton.python_models.responses import RequestCancelled, Responder
from trtspec.serving.triton.python_models.tensors import (
    NEUTRAL_FIELDS,
    NEUTRAL_SCORING,
    NO_ID,
    Array,
    HeldTensors,
    RequestTensors,
    Settings,
    check_unsupported_inputs,
    encode_token_lists,
    read_sampling,
    request_end_ids,
    require_neutral,
    wants_stream,
)
from trtspec.serving.triton.python_models.threaded_model import ThreadedModel
from trtspec.serving.triton.python_models.token_io import TextReader, count_tensors, stop_sequences

NAME = "tensorrt_llm_bls"
CLIENT_ERRORS = ("INVALID_ARG", "UNSUPPORTED")  # other errors may also affect the next request
METRICS = (*known.OF_TEXTS, *known.OF_QUEUE, *known.OF_DRAFTS)
OF_STEPS = ("num_draft_steps", "accepted_by_position")  # outputs
EDITS = {
    name: NEUTRAL_SCORING[name]
    for name in ("repetition_penalty", "presence_penalty", "frequency_penalty", "min_tokens")
}
UNSERVED = NEUTRAL_FIELDS | {name: NEUTRAL_SCORING[name] for name in NEUTRAL_SCORING.keys() - EDITS.keys()}


class TritonPythonModel(ThreadedModel):
    """The `tensorrt_llm_bls` model; Triton calls `initialize`, `execute` and `finalize` by name."""

    def initialize(self, args: dict[str, str]) -> None:
        settings = Settings(args)
        self.tokenizer = settings.tokenizer()
        self.target = settings.parameter("tensorrt_llm_model_name")
        self.draft_model = settings.parameter("tensorrt_llm_draft_model_name")
        self.method = settings.parameter("draft_method")
        self.options: Any = find_method(self.method).parse(settings.json("speculation_options"))
        self.fast_logits = settings.flag("speculative_decoding_fast_logits")
        self.draft_len = int(settings.parameter("draft_len"))
        self.draft_timeout_s = float(settings.parameter("draft_timeout_s"))
        self.lengths = AdaptiveDraftLen(self.draft_len, json.loads(settings.parameter("draft_len_schedule") or "[]"))
        if self.fast_logits and getattr(self.options, "stop_below", None):
            raise TrtspecError("stop_below needs the draft's logits, which fast logits leave on the device")
        self.vocab_size = int(settings.parameter("vocab_size"))
        self.max_seq_len = int(settings.parameter("max_seq_len"))
        self.reader = TextReader(self.tokenizer, self.max_seq_len, vocab_size=self.vocab_size)
        self.greedy_only = settings.flag("greedy_only")
        self.max_top_k = int(settings.parameter("max_top_k") or 0)
        self.lookahead = tuple(int(size) for name in LOOKAHEAD_SIZES if (size := settings.parameter(name)))
        self.accumulates = settings.flag("accumulate_tokens")
        # an engine that drafts by itself reports only token counts
        own_steps = (*known.OF_STEPS, *known.OF_POSITIONS) if self.method != "none" else ()
        families = (*METRICS, *own_steps, *(known.OF_FALLBACKS if self.draft_model else ()))
        self.metrics = EngineMetrics(pb_utils, args, families)
        self.breaker = CircuitBreaker(on_change=self.report_breaker)
        self.begin(pb_utils, args, settings, local_server_client())

    def finalize(self) -> None:
        super().finalize()
        self.metrics.close()

    def answering(self, inputs: HeldTensors, responder: Responder) -> Callable[[], None]:
        return partial(self.answer, inputs, responder, self.metrics.text())

    def answer(self, inputs: HeldTensors, responder: Responder, text: RequestMetrics) -> None:
        """Answer one request; errors are sent as its response."""
        try:
            with inputs.naming():
                self.refuse(inputs)
                job = self.read(inputs)
            text.started()
            streams = wants_stream(inputs, "stream", decoupled=self.decoupled)
            shows_prompt = not inputs.scalar("exclude_input_in_output", streams or not self.is_nvidia)
            transcript = Transcript(
                TextStream(self.tokenizer),
                job,
                shows_prompt=shows_prompt,
                accumulates=self.accumulates,
                counts_steps=self.method != "none",
            )
            with (
                self.lengths.text(),
                closing(ReconnectingStream(self.server, self.departures.watch)) as line,
                self.cancelling(responder, line.cancel) as watch,
                inputs.naming(TEXT_NAMES),
                closing(self.steps(job, line, inputs)) as steps,
            ):
                for step in steps:
                    news = transcript.add(step)
                    if step.finish_reason:
                        watch.close()
                        text.ended(step.finish_reason, transcript.stats)
                    else:
                        text.progressed(transcript.stats)
                    if step.finish_reason or (streams and news):
                        responder.send_tensors(transcript.tensors, final=bool(step.finish_reason))
        except RequestCancelled:
            text.ended("cancelled")
            responder.send_cancelled()
        except Exception as error:
            text.ended("refused" if is_client_error(error) else "error")
            responder.send_failure(error)

    def steps(self, job: GenerationRequest, line: ReconnectingStream, inputs: HeldTensors) -> Generator[DecodeStep]:
        """Return a generator of the decoding steps of one completion.

        Draft lengths are chosen by measured speed, unless the request sets num_draft_tokens. A sampled request with a
        seed follows the schedule only, because its random numbers depend on the steps and it must be reproducible.
        """
        sampling = job.call.sampling
        drafter = self.drafter(line, sampling, inputs.scalar("use_draft_logits"))
        if drafter:
            lengths = self.lengths if inputs.scalar("num_draft_tokens") is None else None
            again = not sampling.greedy and inputs.scalar("seed") is not None
            drafter = FallbackDrafter(drafter, self.breaker, lengths, self.note_fallback, by_speed=not again)
        return generate(job, ServerModel(line, self.target), drafter, self.vocab_size)

    def note_fallback(self, reason: str, error: TrtspecError | None) -> None:
        """Count that the target continues without the draft, by reason, and log the error, if any."""
        self.metrics.fallback(reason)
        if error:
            pb_utils.Logger.log_warn(f"continuing without the draft: {error}")

    def report_breaker(self, is_open: bool) -> None:
        self.metrics.breaker(is_open)
        what = "failed several times and is disabled for a while" if is_open else "works again"
        pb_utils.Logger.log_warn(f"{self.draft_model} {what}")

    def refuse(self, inputs: RequestTensors) -> None:
        """Raise TrtspecError for the first input of a request that this model does not support."""
        inputs.reject_undeclared(self.inputs, NAME)
        require_neutral(UNSERVED, inputs, NAME)
        check_unsupported_inputs(inputs, self.inputs, NAME)
        if inputs.scalar("return_generation_logits", False):
            raise TrtspecError(f"return_generation_logits is not supported by {NAME}")
        wants_stream(inputs, "stream", decoupled=self.decoupled)
        if self.method == "none" and inputs.scalar("num_draft_tokens") is not None:
            hint = "leave it out; to compare, also serve the recipe with method: none"
            raise TrtspecError("num_draft_tokens is not supported by this repository: the engine decides", hint=hint)
        sampling = SamplingOptions(**read_sampling(inputs))
        if 0 < self.max_top_k < sampling.top_k:
            hint = f"at most {self.max_top_k}, or leave it out to sample from all tokens"
            raise TrtspecError(
                f"top_k is {sampling.top_k}, but this engine supports at most {self.max_top_k}", hint=hint
            )
        if self.greedy_only and not sampling.greedy:
            hint = "leave temperature, top_k and top_p out, or build with method: draft_target"
            raise TrtspecError("this engine always takes the most probable token and cannot sample", hint=hint)
        if (self.greedy_only or self.lookahead) and (edits := self.edits(inputs)):
            raise TrtspecError(f"{edits[0][0]} is not supported by this engine, whose own drafting ignores it")

    def read(self, inputs: RequestTensors) -> GenerationRequest:
        prompt = self.reader.prompt(inputs.texts("text_input"), inputs.scalar("add_special_tokens", True))
        max_tokens, wanted = inputs.scalar("max_tokens"), inputs.scalar("num_draft_tokens", self.draft_len)
        if max_tokens < 1:
            raise TrtspecError(f"max_tokens is {max_tokens}, expected at least 1")
        if wanted < 0:
            raise TrtspecError(f"num_draft_tokens is {wanted}, expected 0 or more")
        if (total := len(prompt) + max_tokens) > self.max_seq_len:
            fits = f"at most {self.max_seq_len} fit (engine.max_seq_len)"
            raise TrtspecError(f"prompt and max_tokens are {total} tokens together, {fits}")
        passed, least = self.edits(inputs), self.min_tokens(inputs)
        end_ids, stop = self.end_ids(inputs.scalar("end_id")), tuple(inputs.texts("stop_words"))
        if least > 1 and len(end_ids) > 1:
            raise TrtspecError(
                f"min_tokens {least} is not supported by {NAME} for a model with several end ids",
                hint="set end_id to one",
            )
        call = ModelCall(
            prompt,
            max_tokens,
            SamplingOptions(**read_sampling(inputs)),
            end_ids[0] if end_ids else NO_ID,
            streams=self.decoupled,  # so that stop strings and disconnections end it immediately
            stop_words=[*([token] for token in end_ids[1:]), *stop_sequences(self.reader.pieces, stop)],
            lookahead=self.read_lookahead(inputs),
            passed=passed,
        )
        endings = StopConditions(frozenset(end_ids), stop, self.tokenizer, least)
        return GenerationRequest(call, 0 if passed else min(wanted, self.draft_len), endings)

    def end_ids(self, asked: int | None) -> tuple[int, ...]:
        if self.is_nvidia and asked is None:
            return self.tokenizer.named("eos_token")
        return request_end_ids(self.tokenizer, asked, is_nvidia=self.is_nvidia)

    def min_tokens(self, inputs: RequestTensors) -> int:
        """Return the minimum number of new tokens; 0 if no end id has a logit that could be masked.

        Benchmark clients send min_tokens with an end id beyond the vocabulary so that nothing ends a completion.
        """
        least: int = inputs.scalar("min_tokens", 0)
        ends = self.end_ids(inputs.scalar("end_id"))
        has_end = not self.vocab_size or any(0 <= token < self.vocab_size for token in ends)
        return least if has_end or least < 0 else 0

    def edits(self, inputs: RequestTensors) -> list[tuple[str, Array]]:
        """Return the tensors of a request that change the target's logits.

        With such edits, the target works without a draft: TensorRT-LLM's executor does not count a draft's own tokens
        when it verifies the next ones.
        """
        least = self.min_tokens(inputs)
        asked = ((name, inputs.full_array(name)) for name in EDITS if name != "min_tokens" or least)
        found = [(name, array) for name, array in asked if array is not None and array.item() not in EDITS[name]]
        if words := self.reader.encode_all(inputs.texts("bad_words")):
            found.append(("bad_words_list", encode_token_lists(words)[None]))
        bias = self.reader.bias(inputs.texts("embedding_bias_words"), inputs.values("embedding_bias_weights"))
        return found if bias is None else [*found, ("embedding_bias", bias[None])]

    def read_lookahead(self, inputs: RequestTensors) -> tuple[int, ...]:
        """Return a request's lookahead sizes (window, n-gram, verification set), or () if it sets none.

        Sizes above the limits are rejected here, because the executor detects them only during a step that other
        requests share (NVIDIA/TensorRT-LLM:cpp/tensorrt_llm/layers/lookaheadDecodingLayer.cpp@05cc2c11).
        """
        sizes = tuple(size for name in LOOKAHEAD_SIZES if (size := inputs.scalar(name)) is not None)
        if sizes and not self.lookahead:
            raise TrtspecError(f"{LOOKAHEAD_SIZES[0]} is not supported by this repository: its method is not lookahead")
        if len(sizes) not in (0, len(LOOKAHEAD_SIZES)):
            raise TrtspecError(f"{', '.join(LOOKAHEAD_SIZES)} must be set together")
        if any(size > limit for size, limit in zip(sizes, self.lookahead, strict=False)):
            raise TrtspecError(f"lookahead sizes {sizes} exceed the engine's, {self.lookahead}")
        return sizes

    def drafter(
        self, line: ReconnectingStream, sampling: SamplingOptions, use_draft_logits: bool | None
    ) -> TokenDrafter | None:
        """Return the drafter of one request, or None if the target drafts itself."""
        options = self.options
        if self.method == "none":
            return None
        if self.method == "ngram":
            return LookupDrafter(SuffixIndex(options.max_match), options.min_match)
        return RemoteModelDrafter(
            with_draft_failures(ServerModel(line, self.draft_model, self.draft_timeout_s), self.draft_model),
            sampling,
            draws=options.use_draft_logits if use_draft_logits is None else use_draft_logits,
            stop_below=options.stop_below,
            fast_logits=self.fast_logits,
        )


def with_draft_failures(model: ServerModel, name: str) -> ModelFn:
    """Wrap a draft model so that its failures raise DraftFailed, except for errors of a single request."""

    def ask(call: ModelCall) -> list[ModelAnswer]:
        try:
            return list(model(call))
        except ModelError as error:
            if is_client_error(error):
                raise
            if ended := kill_stopped(name):
                pb_utils.Logger.log_error(f"{name} was stopped; killed its process {ended}")
            raise DraftFailed(error.message, where=error.where) from None

    return ask


def is_client_error(error: Exception) -> bool:
    """Return True if the request caused the error, so that its client can fix it."""
    return error.status in CLIENT_ERRORS if isinstance(error, ModelError) else isinstance(error, TrtspecError)


class Transcript:
    """Accumulates the text and the counts of a completion; an engine that drafts itself reports no steps."""

    def __init__(
        self, stream: TextStream, job: GenerationRequest, *, shows_prompt: bool, accumulates: bool, counts_steps: bool
    ) -> None:
        self.stats, self._counts_steps = Stats(len(job.call.text)), counts_steps
        self._stream, self._accumulates, self._drafts = stream, accumulates, job.draft_len > 0
        self._unshown = list(job.call.text) if shows_prompt else []
        self._text, self._shown = "", 0  # unsent text and its number of tokens

    def add(self, step: DecodeStep) -> bool:
        """Add a step; return True if there is new text to send."""
        own = self._drafts and bool(step.ids)  # each such step is one step of the target
        positions = (1,) * step.accepted if own else ()
        drafts = int(own and step.drafted > 0)
        self.stats += Stats(0, len(step.ids), step.drafted, step.accepted, int(own), positions, drafts)
        text, shown = self._stream.add([*self._unshown, *step.ids], last=step.finish_reason is not None)
        self._unshown = []
        self._text += text
        self._shown += shown
        return shown > 0

    def tensors(self) -> list[tuple[str, Array]]:
        text, shown = self._text, self._shown
        if not self._accumulates:
            self._text, self._shown = "", 0
        return [
            ("text_output", np.array([text.encode()], dtype=object)),
            ("sequence_length", np.array([[shown]], np.int32)),
            ("sequence_index", np.array([[0]], np.int32)),
            *(each for each in count_tensors(self.stats) if self._counts_steps or each[0] not in OF_STEPS),
        ]
