# SPDX-License-Identifier: Apache-2.0
"""The `ensemble` model: text in, text out, by a token-level model that it calls over the server's own gRPC port.

It replaces a Triton ensemble of preprocessing, that model and postprocessing. Triton does not cancel a running step of
an ensemble; this model cancels the inner request when the client disconnects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from trtspec.engine.generation.request import Stats
from trtspec.engine.generation.text import TextPieces
from trtspec.serving.triton.nvidia_compat import GUIDES
from trtspec.serving.triton.python_models.channel_reader import ChannelReader, ReceivedStream, ReceiveFn
from trtspec.serving.triton.python_models.fields import TEXT_NAMES
from trtspec.serving.triton.python_models.grpc_client import (
    ResponseStream,
    infer_request,
    local_server_client,
    output_arrays,
)
from trtspec.serving.triton.python_models.responses import RequestCancelled, Responder
from trtspec.serving.triton.python_models.tensors import (
    Array,
    HeldTensors,
    Settings,
    check_unsupported_inputs,
    encode_token_lists,
)
from trtspec.serving.triton.python_models.threaded_model import ThreadedModel
from trtspec.serving.triton.python_models.token_io import TextReader, count_tensors

# Inputs that are passed on unchanged, and their names in the token-level model.
PASSED_INPUTS = {
    "max_tokens": "request_output_len",
    "num_draft_tokens": "num_draft_tokens",
    "top_k": "runtime_top_k",
    "top_p": "runtime_top_p",
    "temperature": "temperature",
    "seed": "seed",
    "stream": "streaming",
    "return_perf_metrics": "return_perf_metrics",
    "return_num_input_tokens": "return_num_input_tokens",
    "return_num_output_tokens": "return_num_output_tokens",
    "beam_width": "beam_width",
    "num_return_sequences": "num_return_sequences",
    "length_penalty": "len_penalty",
    "repetition_penalty": "repetition_penalty",
    "min_tokens": "min_tokens",
    "presence_penalty": "presence_penalty",
    "frequency_penalty": "frequency_penalty",
    "prompt_ignore_length": "prompt_ignore_length",
    "return_log_probs": "return_log_probs",
    "num_top_logprobs": "num_top_logprobs",
    "return_context_logits": "return_context_logits",
    "return_generation_logits": "return_generation_logits",
    **{name: name for name in GUIDES},
}
# The outputs from which the text is decoded; all others are passed on unchanged.
IDS, LENGTH, CONTINUES = "output_ids", "sequence_length", "continuation"
NEW_TOKENS = "num_output_tokens"
TEXT = "text_output"
# Inputs whose outputs a token channel does not have.
SCORES = ("return_log_probs", "num_top_logprobs", "return_context_logits", "return_generation_logits")


class TritonPythonModel(ThreadedModel):
    """The `ensemble` model; Triton calls `initialize`, `execute` and `finalize` by name."""

    def initialize(self, args: dict[str, str]) -> None:
        settings = Settings(args)
        self.model = settings.parameter("tensorrt_llm_model_name")
        self.reader = TextReader(
            settings.tokenizer(),
            settings.count("max_input_len"),
            vocab_size=settings.count("vocab_size"),
            is_nvidia=settings.is_nvidia,
        )
        server = local_server_client()
        self.channel = ChannelReader(server, self.model)
        self.begin(pb_utils, args, settings, server)

    def finalize(self) -> None:
        self.channel.close()
        super().finalize()

    def answering(self, inputs: HeldTensors, responder: Responder) -> Callable[[], None]:
        return partial(self.answer, inputs, responder)

    def answer(self, inputs: HeldTensors, responder: Responder) -> None:
        """Answer one request; errors are sent as its response."""
        text = GeneratedText(self.reader.pieces, responder)
        try:
            with (
                inputs.naming(TEXT_NAMES),
                self.asking(inputs, responder.wanted, text.add) as (reply, stream),
                self.cancelling(responder, reply.close) as watch,
            ):
                for response, is_last in reply:
                    if is_last:
                        watch.close()
                    if response.outputs:
                        text.send(output_arrays(response), stream, final=is_last)
                    elif is_last:
                        responder.send(None, final=True)
        except RequestCancelled:
            responder.send_cancelled()
        except Exception as error:
            responder.send_failure(error)

    def request(self, inputs: HeldTensors, wanted: set[str]) -> Any:
        outputs = {IDS, LENGTH, CONTINUES, *wanted} - {TEXT}
        return infer_request(self.model, [*self.read(inputs), *passed_on(inputs)], outputs)

    def read(self, inputs: HeldTensors) -> list[tuple[str, Array]]:
        """Tokenize a request's text fields and return the resulting input tensors of the token-level model."""
        inputs.reject_undeclared(self.inputs, "this model")
        check_unsupported_inputs(inputs, self.inputs, "this model", GUIDES)
        prompt = self.reader.prompt(inputs.texts("text_input"), inputs.scalar("add_special_tokens", True))
        end_id, _ = self.reader.ends(inputs.scalar("end_id"))
        stop, bad = (self.reader.encode_all(inputs.texts(name)) for name in ("stop_words", "bad_words"))
        bias = self.reader.bias(inputs.texts("embedding_bias_words"), inputs.values("embedding_bias_weights"))
        excludes = inputs.scalar("exclude_input_in_output", None if self.is_nvidia else True)
        return [
            ("input_ids", np.array([prompt], np.int32)),
            ("input_lengths", np.array([[len(prompt)]], np.int32)),
            ("end_id", np.array([[end_id]], np.int32)),
            ("pad_id", np.array([[self.reader.pad_id(inputs.scalar("pad_id"), end_id)]], np.int32)),
            ("stop_words_list", encode_token_lists(stop)[None]),
            ("bad_words_list", encode_token_lists(bad)[None]),
            *([] if excludes is None else [("exclude_input_in_output", np.array([[excludes]]))]),
            *([] if bias is None else [("embedding_bias", bias[None])]),
        ]

    def streams_text(self, inputs: HeldTensors) -> bool:
        """Return True if a request is streamed and its responses have no outputs that a token channel lacks."""
        is_stream = self.decoupled and bool(inputs.scalar("stream", False))
        has_prompt = inputs.scalar("exclude_input_in_output", True) is False
        return is_stream and not has_prompt and not any(inputs.scalar(name) for name in SCORES)

    @contextmanager
    def asking(
        self, inputs: HeldTensors, wanted: set[str], receive: ReceiveFn
    ) -> Iterator[tuple[ResponseStream, ReceivedStream | None]]:
        """Send a request to the token-level model; yields its responses, and its stream in the token channel if any.

        `receive` gets the tokens of the channel. The request is cancelled at the end of the block.
        """
        request = self.request(inputs, wanted)
        stream = self.channel.join(request, receive) if self.streams_text(inputs) else None
        if stream is not None and NEW_TOKENS not in wanted:
            request.outputs.add(name=NEW_TOKENS)
        has_ended = False
        try:
            with closing(self.server.ask(request)) as reply:
                yield reply, stream
            has_ended = True
        finally:
            if stream is not None:
                self.channel.leave(stream, has_ended=has_ended)


class GeneratedText:
    """The text of one request's tokens, which is sent in pieces."""

    def __init__(self, pieces: TextPieces, responder: Responder) -> None:
        self._pieces, self._responder = pieces, responder
        self._continues = False

    def add(self, ids: list[int], counts: Stats) -> None:
        """Send the text of tokens from the token channel, with the counts so far."""
        continues, self._continues = self._continues, True

        def tensors() -> list[tuple[str, Array]]:
            found = [(LENGTH, np.array([[len(ids)]], np.int32)), ("sequence_index", np.array([[0]], np.int32))]
            return [self._text([ids], continues=continues), *found, *count_tensors(counts)]

        self._responder.send_tensors(tensors, final=False)

    def send(self, outputs: dict[str, Array], stream: ReceivedStream | None, *, final: bool) -> None:
        """Send the text of a response of the token-level model, the last one after the tokens of its channel."""
        lengths = outputs[LENGTH].reshape(-1).tolist()
        if stream is not None and final:
            stream.wait_for(int(outputs[NEW_TOKENS].item()) - lengths[0])
        elif stream is not None:  # the model does not know the channel, for example because it restarted
            stream.count(lengths[0])
        continues = bool(outputs.pop(CONTINUES).item()) or self._continues
        rows = [ids[:length] for ids, length in zip(outputs.pop(IDS)[0].tolist(), lengths, strict=True)]
        self._responder.send_tensors(lambda: [self._text(rows, continues=continues), *outputs.items()], final=final)

    def _text(self, rows: Sequence[Sequence[int]], *, continues: bool) -> tuple[str, Array]:
        texts = [self._pieces.text(ids, continues=continues).encode() for ids in rows]
        return TEXT, np.array(texts, dtype=object)


def passed_on(inputs: HeldTensors) -> list[tuple[str, Array]]:
    beams = (inputs.scalar("beam_width") or 1) > 1  # a length penalty does not affect a single beam
    found = ((inner, inputs.array(name)) for name, inner in PASSED_INPUTS.items() if beams or name != "length_penalty")
    return [(inner, array[None]) for inner, array in found if array is not None]
