# SPDX-License-Identifier: Apache-2.0
"""Text to text: one model drafts, or the text so far does, and another verifies; or one model makes the text alone.

Each request has a thread of its own, which waits for the models; these batch what all threads ask for. Responses
leave under one lock, and the final flag rides on the last of a request: many senders with separate final flags crash
tritonserver 2.51.
"""

from __future__ import annotations

import threading
from collections.abc import Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from trtspec.errors import TrtspecError
from trtspec.generation.endings import Endings
from trtspec.generation.request import SamplingOptions
from trtspec.generation.suffix_index import SuffixIndex
from trtspec.generation.text import Pieces, TextStream
from trtspec.methods.base import find_method
from trtspec.triton.python_models.bls import NO_ID, Drafter, Job, LookupDrafter, ModelDrafter, Step, generate
from trtspec.triton.python_models.own_server import Stream, own_server
from trtspec.triton.python_models.responses import Responder
from trtspec.triton.python_models.server_model import LOOKAHEAD_SIZES, ServerModel
from trtspec.triton.python_models.tensors import (
    Array,
    RequestTensors,
    Settings,
    read_sampling,
    refuse_unsupported,
)

NAME = "tensorrt_llm_bls"
REQUESTS_PER_PLACE = 2  # while some are verified, others are drafted


class TritonPythonModel:
    """Triton calls initialize, execute and finalize by name."""

    def initialize(self, args: dict[str, str]) -> None:
        settings = Settings(args)
        self.decoupled = settings.decoupled
        self.tokenizer = settings.tokenizer()
        self.pieces = Pieces(self.tokenizer)
        self.server = own_server()
        self.target = settings.parameter("tensorrt_llm_model_name")
        self.draft_model = settings.parameter("tensorrt_llm_draft_model_name")
        self.method = settings.parameter("draft_method")
        self.options: Any = find_method(self.method).parse(settings.json("speculation_options"))
        self.fast_logits = settings.parameter("speculative_decoding_fast_logits") == "true"
        self.draft_len = int(settings.parameter("draft_len"))
        if self.fast_logits and getattr(self.options, "stop_below", None):
            raise TrtspecError("stop_below needs the draft's logits, which fast logits leave on the device")
        self.vocab_size = int(settings.parameter("vocab_size"))
        self.max_seq_len = int(settings.parameter("max_seq_len"))
        self.greedy_only = settings.parameter("greedy_only") == "true"
        self.max_top_k = int(settings.parameter("max_top_k") or 0)
        self.lookahead = tuple(int(size) for name in LOOKAHEAD_SIZES if (size := settings.parameter(name)))
        self.accumulates = settings.parameter("accumulate_tokens") == "true"
        self.lock = threading.Lock()
        self.threads = ThreadPoolExecutor(REQUESTS_PER_PLACE * settings.max_batch_size)

    def execute(self, requests: list[Any]) -> list[Any] | None:
        replies = [self.start(request) for request in requests]
        return None if self.decoupled else [reply.responder.result() for reply in replies]

    def finalize(self) -> None:
        self.threads.shutdown()
        self.server.close()

    def start(self, request: Any) -> Reply:
        """Give one request a thread; what its tensors hold is read here, where the server's memory is still its own."""
        reply = Reply(Responder(pb_utils, request, self.lock, decoupled=self.decoupled))
        try:
            inputs = RequestTensors(pb_utils, request)
            self.refuse(inputs)
            job = self.read(inputs)
            transcript = Transcript(
                TextStream(self.tokenizer),
                job.prompt,
                shows_prompt=not inputs.scalar("exclude_input_in_output", True),
                accumulates=self.accumulates,
            )
            steps = self.steps(job, inputs.scalar("use_draft_logits"))
            self.threads.submit(reply.follow, steps, transcript, streams=bool(inputs.scalar("stream", False)))
        except Exception as error:
            reply.responder.send_failure(error)
        return reply

    def steps(self, job: Job, use_draft_logits: bool | None) -> Generator[Step]:
        """Yield one text as its models make it."""
        with closing(self.server.open()) as stream:
            drafter = self.drafter(stream, job.sampling, use_draft_logits)
            yield from generate(job, ServerModel(stream, self.target), drafter, self.vocab_size)

    def refuse(self, inputs: RequestTensors) -> None:
        """Raise for the first input that asks for what is not done here."""
        refuse_unsupported(inputs, NAME)
        if inputs.scalar("return_generation_logits", False):
            raise TrtspecError(f"return_generation_logits is not supported by {NAME}")
        if inputs.scalar("stream", False) and not self.decoupled:
            raise TrtspecError("stream is not served by this repository", hint="build it with serving.streaming: true")
        if self.method == "none" and inputs.scalar("num_draft_tokens") is not None:
            hint = "leave it out; to compare, serve the recipe with method: none beside it"
            raise TrtspecError("num_draft_tokens is not served by this repository: the engine decides", hint=hint)
        sampling = SamplingOptions(**read_sampling(inputs))
        if 0 < self.max_top_k < sampling.top_k:
            hint = f"at most {self.max_top_k}, or leave it out to sample from all tokens"
            raise TrtspecError(f"top_k is {sampling.top_k}, and this engine samples from {self.max_top_k}", hint=hint)
        if self.greedy_only and not sampling.greedy:
            hint = "leave temperature, top_k and top_p out, or build with method: draft_target"
            raise TrtspecError("this engine always takes the most probable token and cannot sample", hint=hint)

    def read(self, inputs: RequestTensors) -> Job:
        """Return what the tensors of a request ask for."""
        prompt = self.tokenizer.encode("".join(inputs.texts("text_input")))
        max_tokens, wanted = inputs.scalar("max_tokens"), inputs.scalar("num_draft_tokens", self.draft_len)
        total = len(prompt) + max_tokens
        complaints = {
            "text_input is empty": not prompt,
            f"max_tokens is {max_tokens}, expected at least 1": max_tokens < 1,
            f"num_draft_tokens is {wanted}, expected 0 or more": wanted < 0,
            f"prompt and max_tokens are {total} tokens together, at most {self.max_seq_len} fit (engine.max_seq_len)": (
                total > self.max_seq_len
            ),
        }
        for complaint in (said for said, holds in complaints.items() if holds):
            raise TrtspecError(complaint)
        end_ids, stop = self.tokenizer.end_ids, tuple(inputs.texts("stop_words"))
        if (asked := inputs.scalar("end_id")) is not None and asked not in end_ids:
            end_ids = () if asked < 0 else (asked,)
        return Job(
            prompt=prompt,
            max_tokens=max_tokens,
            draft_len=min(wanted, self.draft_len),
            sampling=SamplingOptions(**read_sampling(inputs)),
            endings=Endings(frozenset(end_ids), stop, self.tokenizer),
            end_id=end_ids[0] if end_ids else NO_ID,
            stop_words=[*([token] for token in end_ids[1:]), *self.words(stop)],
            lookahead=self.read_lookahead(inputs),
            streams=self.decoupled,  # so that a stop text, and a client that leaves, end it at once
        )

    def words(self, stop: Sequence[str]) -> Iterator[list[int]]:
        """Yield stop texts as ids, where they can be written so: the engine then stops there by itself."""
        for text in stop:
            with suppress(TrtspecError):
                yield self.pieces.encode(text)

    def read_lookahead(self, inputs: RequestTensors) -> tuple[int, ...]:
        """Return the sizes of lookahead that a request lowers: all three or, for most requests, none.

        Ones that are too large are refused here, since the executor finds them only in the midst of a step, which
        other requests share (NVIDIA/TensorRT-LLM:cpp/tensorrt_llm/layers/lookaheadDecodingLayer.cpp@05cc2c11).
        """
        sizes = tuple(size for name in LOOKAHEAD_SIZES if (size := inputs.scalar(name)) is not None)
        if sizes and not self.lookahead:
            raise TrtspecError(f"{LOOKAHEAD_SIZES[0]} is not served by this repository: its method is not lookahead")
        if len(sizes) not in (0, len(LOOKAHEAD_SIZES)):
            raise TrtspecError(f"{', '.join(LOOKAHEAD_SIZES)} come together or not at all")
        if any(size > limit for size, limit in zip(sizes, self.lookahead, strict=False)):
            raise TrtspecError(f"lookahead sizes {sizes} are above those of the engine, {self.lookahead}")
        return sizes

    def drafter(self, stream: Stream, sampling: SamplingOptions, use_draft_logits: bool | None) -> Drafter | None:
        """Return what drafts for one request, if anything does."""
        options = self.options
        if self.method == "none":
            return None
        if self.method == "ngram":
            return LookupDrafter(SuffixIndex(options.max_match), options.min_match)
        return ModelDrafter(
            ServerModel(stream, self.draft_model),
            sampling,
            draws=options.use_draft_logits if use_draft_logits is None else use_draft_logits,
            stop_below=options.stop_below,
            fast_logits=self.fast_logits,
        )


class Transcript:
    """A text as its client sees it, and what it took."""

    def __init__(self, stream: TextStream, prompt: Sequence[int], *, shows_prompt: bool, accumulates: bool) -> None:
        self.stream = stream
        self.accumulates = accumulates
        self.prompt_tokens = len(prompt)
        self.unshown = list(prompt) if shows_prompt else []
        self.new_tokens = self.drafted = self.accepted = 0
        self.text, self.shown = "", 0  # not sent yet, and the number of its tokens

    def add(self, step: Step) -> bool:
        """Take what is new; returns whether there is anything to show."""
        self.new_tokens += len(step.ids)
        self.drafted += step.drafted
        self.accepted += step.accepted
        text, shown = self.stream.add([*self.unshown, *step.ids], last=step.finish_reason is not None)
        self.unshown = []
        self.text += text
        self.shown += shown
        return shown > 0

    def tensors(self) -> list[tuple[str, Array]]:
        """Return the output tensors of the text not sent yet."""
        text, shown = self.text, self.shown
        if not self.accumulates:
            self.text, self.shown = "", 0
        rate = self.accepted / self.drafted if self.drafted else 0.0
        return [
            ("text_output", np.array([[text.encode()]], dtype=object)),
            ("sequence_length", np.array([[shown]], np.int32)),
            ("sequence_index", np.array([[0]], np.int32)),
            ("acceptance_rate", np.array([[rate]], np.float32)),
            ("total_accepted_draft_tokens", np.array([[self.accepted]], np.int32)),
            ("total_draft_tokens", np.array([[self.drafted]], np.int32)),
            ("num_input_tokens", np.array([[self.prompt_tokens]], np.int32)),
            ("num_output_tokens", np.array([[self.new_tokens]], np.int32)),
        ]


class Reply:
    """One client, who gets a response or several."""

    def __init__(self, responder: Responder) -> None:
        self.responder = responder

    def follow(self, steps: Generator[Step], transcript: Transcript, *, streams: bool) -> None:
        """Send what the steps bring, until the text ends, they fail, or the client is gone."""
        try:
            with closing(steps):
                for step in steps:
                    if self.responder.is_cancelled():
                        self.responder.send_cancelled()
                        return
                    news = transcript.add(step)
                    last = step.finish_reason is not None
                    if last or (streams and news):
                        self.responder.send_tensors(transcript.tensors, final=last)
        except Exception as error:
            self.responder.send_failure(error)
