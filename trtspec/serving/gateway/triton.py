# SPDX-License-Identifier: Apache-2.0
"""The gateway's Triton client: request messages, raw response tensors, and one gRPC stream per completion."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import secrets
import struct
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any, TypeAlias

import grpc
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

from trtspec.checkpoints.tokenizer import RenderedText
from trtspec.core.errors import Overloaded
from trtspec.serving.gateway.errors import (
    RETRY_AFTER_S,
    ApiError,
    internal_error,
    invalid_request,
    overloaded,
    shutting_down,
    unsupported,
)
from trtspec.serving.gateway.parameters import RequestParameters
from trtspec.serving.gateway.token_channel import PushFn, StreamInbox, TokenChannel
from trtspec.serving.triton.names import ADD_SPECIAL_TOKENS, STREAM_PARAMETER, TOKEN_CHANNELS
from trtspec.serving.triton.nvidia_compat import GRAMMARS, GUIDES, MODEL, PARAMETER
from trtspec.serving.triton.python_models.fields import TEXT_NAMES, rename_fields
from trtspec.serving.triton.python_models.grpc_client import (
    ASKS_FOR_LAST,
    NO_LIMIT,
    infer_request,
    is_last,
    status_from_message,
)
from trtspec.serving.triton.python_models.responses import REFUSED, SHUTTING_DOWN, client_message, parse_error_id
from trtspec.serving.triton.python_models.tensors import NO_ID, Array, encode_token_lists

COUNTS = ("total_draft_tokens", "total_accepted_draft_tokens", "num_draft_steps", "accepted_by_position")
LOG_PROBS, TOP_LOG_PROBS, TOP_IDS = "output_log_probs", "top_logprobs", "top_logprob_ids"
PENALTIES: dict[str, tuple[Any, float]] = {  # dtype and neutral value
    "presence_penalty": (np.float32, 0),
    "frequency_penalty": (np.float32, 0),
    "repetition_penalty": (np.float32, 1),
    "min_tokens": (np.int32, 0),
}
BIAS = "embedding_bias"
WHOLE_PROMPT = (1 << 31) - 1  # OpenAI's penalties count generated tokens only; TensorRT-LLM also counts the prompt
SEEDS = 1 << 63


@dataclass(frozen=True)
class TritonModelInfo:
    """A Triton model's input and output names; a decoupled model can stream its responses."""

    name: str
    inputs: frozenset[str]
    outputs: frozenset[str]
    decoupled: bool
    own_counts: bool = False  # num_output_tokens counts one response's tokens only
    token_channels: bool = False  # new tokens of all streams can come in one response
    takes_model_defaults: bool = False  # omitted fields take the values of the model's generation_config.json
    has_grammars: bool = True  # false if it has the inputs of a grammar, but its engine was started without support

    @classmethod
    def of(cls, config: Any) -> TritonModelInfo:
        outputs = {output.name: list(output.dims) for output in config.output}
        return cls(
            config.name,
            frozenset(tensor.name for tensor in config.input),
            frozenset(outputs),
            config.model_transaction_policy.decoupled,
            # the shape used by Triton backends with one sequence per request
            own_counts=outputs.get("num_output_tokens") == [-1],
            token_channels=_text_parameter(config, TOKEN_CHANNELS) == "true",
            takes_model_defaults=_text_parameter(config, PARAMETER) == MODEL,
            has_grammars=_text_parameter(config, GRAMMARS) in ("", "true"),
        )


def _text_parameter(config: Any, key: str) -> str:
    return str(config.parameters[key].string_value) if key in config.parameters else ""


class RequestBuilder:
    """Builds a ModelInferRequest from named input tensors."""

    def __init__(self, model: TritonModelInfo) -> None:
        self.model = model
        self._inputs: list[tuple[str, Array]] = []

    def add(self, name: str, kind: Any, values: Sequence[Any] | Array) -> None:
        """Add an input tensor `[1, *values.shape]` of the numpy type `kind`."""
        self._inputs.append((name, np.asarray(values, kind)[None]))

    def add_optional(self, name: str, kind: Any, value: Any) -> None:
        """Add an input tensor `[1, 1]` if the model has this input."""
        if name in self.model.inputs:
            self.add(name, kind, [value])

    def add_requested(self, parameter: str, name: str, kind: Any, values: Sequence[Any] | Array) -> None:
        """Add the tensor of a requested parameter; raises ApiError if the model does not have the input."""
        if name not in self.model.inputs:
            raise unsupported(parameter, parameter)
        self.add(name, kind, values)

    def message(self, outputs: Sequence[str]) -> Any:
        """Return the ModelInferRequest; outputs that the model does not have are left out."""
        message = infer_request(self.model.name, self._inputs, [name for name in outputs if name in self.model.outputs])
        message.parameters[ASKS_FOR_LAST].bool_param = True
        return message


def token_request(
    model: TritonModelInfo,
    ids: Sequence[int],
    asked: RequestParameters,
    seed: int,
    end_id: int,
    stop_words: Sequence[Sequence[int]],
    bias_len: int,
) -> Any:
    """Return the ModelInferRequest for a model with token ids as input and output.

    `ids` is the prompt, `stop_words` are token sequences, and `bias_len` is the number of logits per position. Raises
    ApiError if the model does not support a requested parameter.
    """
    request = RequestBuilder(model)
    request.add("input_ids", np.int32, ids)
    request.add("input_lengths", np.int32, [len(ids)])
    request.add("request_output_len", np.int32, [asked.max_tokens])
    request.add("end_id", np.int32, [end_id])
    request.add("streaming", np.bool_, [asked["stream"] and model.decoupled])
    if stop_words:
        request.add("stop_words_list", np.int32, encode_token_lists(stop_words))
    if asked.logit_bias:
        dense = np.zeros(bias_len, np.float32)
        dense[[*asked.logit_bias]] = [*asked.logit_bias.values()]
        request.add_requested("logit_bias", BIAS, np.float32, dense)
    _add_sampling(request, asked, seed, "runtime_", greedy_temperature=1.0)
    log_probs = _log_probs(request, asked)
    message = request.message(["output_ids", "sequence_length", "num_output_tokens", *COUNTS, *log_probs])
    if asked["stream"] and model.token_channels and not log_probs:
        message.parameters[STREAM_PARAMETER].int64_param = 0  # the channel sets its number
    return message


def text_request(model: TritonModelInfo, text: str, asked: RequestParameters, seed: int) -> Any:
    """Return the ModelInferRequest of a model with text tensors; raises ApiError for unsupported parameters."""
    if asked.logit_bias:  # a text model accepts biases by word, and not every token is a word
        raise unsupported("logit_bias", "logit_bias")
    request = RequestBuilder(model)
    request.add("text_input", object, [text.encode()])
    if isinstance(text, RenderedText):
        request.add_optional(ADD_SPECIAL_TOKENS, np.bool_, False)
    request.add("max_tokens", np.int32, [asked.max_tokens])
    request.add("stream", np.bool_, [asked["stream"] and model.decoupled])
    if asked.stop:
        request.add("stop_words", object, [stop.encode() for stop in asked.stop])
    if asked["ignore_eos"]:
        request.add_requested("ignore_eos", "end_id", np.int32, [NO_ID])
    for name in ("return_num_input_tokens", "return_num_output_tokens"):
        request.add_optional(name, np.bool_, True)
    _add_sampling(request, asked, seed, "", greedy_temperature=0.0)
    log_probs = _log_probs(request, asked)
    return request.message(["text_output", "num_input_tokens", "num_output_tokens", *COUNTS, *log_probs])


def choice_seed(asked: RequestParameters, choice: int) -> int:
    """Return the random seed of a choice, in 0 to 2^63 - 1.

    The first choice uses the request's seed, and further choices use a hash of it. Without `seed`, it is random.
    """
    if asked["seed"] is None:
        return secrets.randbelow(SEEDS)
    if choice == 0:
        return int(asked["seed"]) % SEEDS
    digest = hashlib.blake2b(f"{asked['seed']} {choice}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % SEEDS


def ints(raw: bytes | None) -> list[int]:
    """Return the values of a raw INT32 or UINT32 tensor; [] for None."""
    return memoryview(raw).cast("i").tolist() if raw else []  # three times as fast as numpy


def floats(raw: bytes | None) -> list[float]:
    """Return the values of a raw FP32 tensor; [] for None."""
    return np.frombuffer(raw, np.float32).tolist() if raw else []


def decode_text(raw: bytes | None) -> str:
    """Return the first string of a raw BYTES tensor; "" for None."""
    return raw[4 : 4 + struct.unpack_from("<I", raw)[0]].decode(errors="replace") if raw else ""


def _add_sampling(
    request: RequestBuilder, asked: RequestParameters, seed: int, prefix: str, *, greedy_temperature: float
) -> None:
    """Add the sampling tensors to a request, because the engines' defaults differ from OpenAI's.

    If the model has its own defaults, only parameters that the request contains are added.
    """
    greedy = asked["temperature"] == 0 or asked["top_p"] == 0
    keeps_defaults = request.model.takes_model_defaults
    for name, tensor, value, kind in (
        ("temperature", "temperature", greedy_temperature if greedy else asked["temperature"], np.float32),
        ("top_k", f"{prefix}top_k", 1 if greedy else max(0, asked["top_k"]), np.int32),
        ("top_p", f"{prefix}top_p", 1.0 if greedy else asked["top_p"], np.float32),
    ):
        if name in asked.given or greedy or not keeps_defaults:
            request.add(tensor, kind, [value])
    request.add("seed", np.uint64, [seed])
    request.add_optional("exclude_input_in_output", np.bool_, True)
    request.add_optional("return_perf_metrics", np.bool_, True)
    for name, (kind, neutral) in PENALTIES.items():
        if asked[name] != neutral or (keeps_defaults and name in asked.given):
            request.add_requested(name, name, kind, [asked[name]])
    if asked["num_draft_tokens"] is not None:
        request.add_requested("num_draft_tokens", "num_draft_tokens", np.int32, [asked["num_draft_tokens"]])
    if asked.constraint is not None and not request.model.has_grammars:
        hint = "build its recipe with serving.structured_output: true"
        raise unsupported("response_format", "response_format", hint)
    if asked.constraint is not None:
        for tensor, text in zip(GUIDES, (asked.constraint.guide_type, asked.constraint.guide), strict=True):
            request.add_requested(asked.constraint_param, tensor, object, [text.encode()])
    if asked["presence_penalty"] or asked["frequency_penalty"]:
        request.add_optional("prompt_ignore_length", np.int32, WHOLE_PROMPT)


def _log_probs(request: RequestBuilder, asked: RequestParameters) -> list[str]:
    """Add the inputs for log probabilities and return the output names; raises ApiError if unsupported."""
    if asked.top_logprobs is None:
        return []
    if LOG_PROBS not in request.model.outputs:
        raise unsupported("logprobs", "logprobs")
    request.add_requested("logprobs", "return_log_probs", np.bool_, [True])
    if not asked.top_logprobs:
        return [LOG_PROBS]
    if TOP_LOG_PROBS not in request.model.outputs:
        raise unsupported("top_logprobs greater than 0", "top_logprobs")
    request.add_requested("top_logprobs", "num_top_logprobs", np.int32, [asked.top_logprobs])
    return [LOG_PROBS, TOP_LOG_PROBS, TOP_IDS]


READY_TIMEOUT_S = 1.0
READY_FOR_S = 0.25  # time for which readiness is cached
ENDS_S = 1.0  # time for the server to end a stream after its last response
# short, because the server is on this host
RECONNECT = [(f"grpc.{which}_reconnect_backoff_ms", 200) for which in ("initial", "min", "max")]

OPENAI_NAMES = {  # by the model's tensor names
    **TEXT_NAMES,
    "stop_words_list": "stop",
    BIAS: "logit_bias",
    **dict.fromkeys(GUIDES, "response_format"),
}
FULL = ("maximum queue size", "timeout expired", Overloaded.WORDS)

Code = grpc.StatusCode
ModelResponses: TypeAlias = "AsyncGenerator[tuple[Mapping[str, bytes], bool], None]"  # tensors, whether it is the last
log = logging.getLogger(__name__)


class TritonClient:
    """gRPC client for one model of a Triton server; create it inside the running event loop."""

    def __init__(self, address: str, model: str, timeout_s: float) -> None:
        self._channel = grpc.aio.insecure_channel(address, [*NO_LIMIT, *RECONNECT])
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._name, self._timeout_s = model, timeout_s
        self._model: TritonModelInfo | None = None
        self._ready, self._asked_at = False, float("-inf")
        self._asking = asyncio.Lock()
        self._tokens: TokenChannel | None = None

    async def model(self) -> TritonModelInfo:
        """Return the model's inputs and outputs; raises ApiError if the server is unavailable."""
        if self._model is None:
            request = service_pb2.ModelConfigRequest(name=self._name)
            try:
                response = await self._stub.ModelConfig(request, timeout=READY_TIMEOUT_S)
            except grpc.RpcError as error:
                raise _unavailable(_details(error)) from None
            self._model = TritonModelInfo.of(response.config)
        return self._model

    async def is_ready(self) -> bool:
        """Return True if the server reports the model as ready; the result is cached for READY_FOR_S."""
        async with self._asking:
            if time.monotonic() - self._asked_at > READY_FOR_S:
                request = service_pb2.ModelReadyRequest(name=self._name)
                try:
                    self._ready = bool((await self._stub.ModelReady(request, timeout=READY_TIMEOUT_S)).ready)
                except grpc.RpcError:
                    self._ready = False
                self._asked_at = time.monotonic()
        return self._ready

    async def generate(self, request: Any, push: PushFn | None = None) -> ModelResponses:
        """Send a request and yield `(tensors, is_last)` for each response, with raw tensors by output name.

        A request with STREAM_PARAMETER gets its new tokens from the token channel, if the model has one. `push` is
        called with the ids of new tokens as soon as the channel has them. If it returns False, they are yielded
        instead. Raises ApiError if the request fails. Closing the iterator cancels the request.
        """
        channel = None
        if STREAM_PARAMETER in request.parameters:
            channel = self._open_channel() if (await self.model()).token_channels else None
            del request.parameters[STREAM_PARAMETER]
        responses = self._from_stream(request) if channel is None else self._from_channel(request, channel, push)
        async with aclosing(responses):
            async for response in responses:
                yield response

    def _open_channel(self) -> TokenChannel | None:
        """Return the open token channel, or None for a minute after the model refused one."""
        if self._tokens is None or not (self._tokens.is_open or self._tokens.is_refused):
            self._tokens = TokenChannel(self._stub, self._name)
        return self._tokens if self._tokens.is_open else None

    async def _from_channel(self, request: Any, channel: TokenChannel, push: PushFn | None) -> ModelResponses:
        """Yield the tokens that the channel delivers, and the last response of the request's own stream."""
        inbox = channel.join(request, push)
        last = asyncio.ensure_future(self._last(request, inbox))
        last.add_done_callback(lambda _: inbox.wake())
        try:
            while True:
                if not last.done():
                    await inbox.wait()  # unbounded: `last` wakes it when it is done
                if ids := inbox.take():
                    yield {"output_ids": ids}, False
                elif last.done():
                    outputs = last.result()
                    inbox.expected = ints(outputs["num_output_tokens"])[0] - ints(outputs["sequence_length"])[0]
                    if inbox.received >= inbox.expected:
                        yield outputs, True
                        return
                    await self._rest(inbox)
                elif inbox.is_broken:
                    await asyncio.wait({last}, timeout=ENDS_S)  # its own stream may tell why, such as a shutdown
                    if not last.done():
                        raise _broken()
        finally:
            channel.leave(inbox, has_ended=last.done())
            last.cancel()

    async def _rest(self, inbox: StreamInbox) -> None:
        """Wait for tokens that the channel still has to deliver, behind those of others; raise ApiError if it ends."""
        if inbox.is_broken:
            raise _broken()
        try:
            await asyncio.wait_for(inbox.wait(), self._timeout_s)  # unbounded: it has a time limit
        except (asyncio.TimeoutError, TimeoutError):
            raise _broken() from None

    async def _last(self, request: Any, inbox: StreamInbox) -> Mapping[str, bytes]:
        """Return the last response of a request; a model that has lost the channel sends the tokens in others."""
        async with aclosing(self._from_stream(request)) as responses:
            async for outputs, is_last in responses:
                if is_last:
                    return outputs
                inbox.put(ints(outputs["output_ids"])[: ints(outputs["sequence_length"])[0]])
        raise _broken()

    async def _from_stream(self, request: Any) -> ModelResponses:
        call = self._stub.ModelStreamInfer(timeout=self._timeout_s)
        answered = False
        try:
            await call.write(request)
            await call.done_writing()
            while (message := await call.read()) is not grpc.aio.EOF:
                answered = is_last(message)
                if message.error_message:
                    raise _refused(message.error_message)
                response = message.infer_response
                names = [output.name for output in response.outputs]
                yield dict(zip(names, response.raw_output_contents, strict=True)), answered
                if answered:
                    return
            code, details = await call.code(), await call.details()
            raise _failed(code, details or "") if code != Code.OK else _broken()
        except grpc.RpcError as error:
            raise _failed(error.code(), _details(error)) from None
        finally:
            if answered:
                await _let_end(call)
            else:
                self._asked_at = float("-inf")  # invalidates the cached readiness: the server may have died
            call.cancel()

    async def close(self) -> None:
        if self._tokens is not None:
            await self._tokens.close()
        await self._channel.close()


async def _let_end(call: Any) -> None:
    """Wait up to ENDS_S for the server to end a stream, because cancelling it now may leave it open in the server."""
    with suppress(asyncio.TimeoutError, grpc.RpcError):
        await asyncio.wait_for(call.read(), ENDS_S)


def _details(error: grpc.RpcError) -> str:
    return str(error.details() or error.code().name)


def _failed(code: grpc.StatusCode, details: str) -> ApiError:
    """Return the client's error for a gRPC status."""
    if code == Code.DEADLINE_EXCEEDED:
        return ApiError(504, "the request timed out", code="timeout")
    if code in (Code.RESOURCE_EXHAUSTED, Code.UNAVAILABLE):
        return _unavailable(details)
    if code in (Code.INVALID_ARGUMENT, Code.OUT_OF_RANGE, Code.UNIMPLEMENTED):
        return _refused(details)
    if code == Code.CANCELLED:
        return _broken()
    return _model_failed(details)


def _unavailable(details: str) -> ApiError:
    """Return a retryable error; unrecognized details from gRPC and Triton are only logged."""
    if SHUTTING_DOWN in details:
        return shutting_down()
    if any(words in details for words in FULL):
        return overloaded("the model's queue is full; retry in a moment")
    log.warning("the model is unavailable: %s", details)
    return overloaded("the model is unavailable; retry in a moment")


def _refused(message: str) -> ApiError:
    """Return the client's error for a model's error message, whose status is derived from its text."""
    status = status_from_message(message)
    if status == "UNAVAILABLE":
        return _unavailable(message)
    if status == "CANCELLED":
        return _broken()
    if status != REFUSED:
        return _model_failed(message)
    shown = rename_fields(message.split("\n", 1)[0], OPENAI_NAMES)
    if message.startswith(BIAS):  # the engine accepts the tensor but ignores it
        return invalid_request(shown, "logit_bias", "unsupported_parameter")
    return invalid_request(shown, code="refused_by_model")


def _model_failed(details: str) -> ApiError:
    """Return a 500 error with the model's error id, or with a new id under which `details` are logged."""
    if fault := parse_error_id(details):
        message = client_message(fault, "the server's")
        return ApiError(500, f"the model failed: {message}", code="model_failed")
    return internal_error("the model failed", details, code="model_failed")


def _broken() -> ApiError:
    return ApiError(503, "the server ended the response early", code="broken", retry_after_s=RETRY_AFTER_S)
