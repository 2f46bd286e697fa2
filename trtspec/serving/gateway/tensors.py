# SPDX-License-Identifier: Apache-2.0
"""Triton requests as protobuf messages and raw response tensors as values, fast enough to be built for every token."""

from __future__ import annotations

import hashlib
import secrets
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from tritonclient.grpc import service_pb2

from trtspec.checkpoints.rendered_text import RenderedText
from trtspec.serving.gateway.errors import unsupported
from trtspec.serving.gateway.parameters import RequestParameters
from trtspec.serving.triton.names import ADD_SPECIAL_TOKENS
from trtspec.serving.triton.nvidia_compat import MODEL, PARAMETER
from trtspec.serving.triton.python_models.grpc_client import ASKS_FOR_LAST
from trtspec.serving.triton.python_models.tensors import words_to_tensor

COUNTS = ("total_draft_tokens", "total_accepted_draft_tokens", "num_draft_steps", "accepted_by_position")
LOG_PROBS, TOP_LOG_PROBS, TOP_IDS = "output_log_probs", "top_logprobs", "top_logprob_ids"
PENALTIES = ("presence_penalty", "frequency_penalty", "repetition_penalty", "min_tokens")
BIAS = "embedding_bias"
WHOLE_PROMPT = (1 << 31) - 1  # OpenAI's penalties count generated tokens only; TensorRT-LLM also counts the prompt
SEEDS = 1 << 63
NO_ID = -1


@dataclass(frozen=True)
class TritonModelInfo:
    """A model's configuration in Triton: its tensors and whether it streams."""

    name: str
    inputs: frozenset[str]
    outputs: frozenset[str]
    decoupled: bool
    own_counts: bool = False  # num_output_tokens counts one response's tokens only
    takes_model_defaults: bool = False  # omitted fields take the values of the model's generation_config.json

    @classmethod
    def of(cls, config: Any) -> TritonModelInfo:
        """Return the model described by a ModelConfig message."""
        outputs = {output.name: list(output.dims) for output in config.output}
        return cls(
            config.name,
            frozenset(tensor.name for tensor in config.input),
            frozenset(outputs),
            config.model_transaction_policy.decoupled,
            own_counts=outputs.get("num_output_tokens")
            == [-1],  # the shape used by Triton backends with one sequence per request
            takes_model_defaults=PARAMETER in config.parameters and config.parameters[PARAMETER].string_value == MODEL,
        )

    @property
    def gives_log_probs(self) -> bool:
        return LOG_PROBS in self.outputs and "return_log_probs" in self.inputs


@dataclass(frozen=True)
class StopParameters:
    """The end-of-sequence id and the stop sequences of an engine request."""

    id: int = NO_ID
    words: Sequence[Sequence[int]] = ()


class RequestBuilder:
    """Builds one ModelInferRequest; a parameter whose tensor the model lacks is an error that names the parameter."""

    def __init__(self, model: TritonModelInfo) -> None:
        self._model, self.takes_model_defaults = model, model.takes_model_defaults
        self.message = service_pb2.ModelInferRequest(model_name=model.name)
        self.message.parameters[ASKS_FOR_LAST].bool_param = True

    def add(
        self, name: str, values: Sequence[Any] | npt.NDArray[Any], kind: str, shape: Sequence[int] = (1, 1)
    ) -> None:
        """Add a tensor of Triton datatype `kind`; `shape` includes the batch dimension of 1."""
        raw = _texts(values) if kind == "BYTES" else np.asarray(values, NUMPY[kind]).tobytes()
        self.message.inputs.add(name=name, datatype=kind, shape=shape)
        self.message.raw_input_contents.append(raw)

    def add_optional(self, name: str, value: Any, kind: str) -> None:
        """Add a tensor if the model has it."""
        if name in self._model.inputs:
            self.add(name, [value], kind)

    def add_requested(self, parameter: str, name: str, value: Any, kind: str) -> None:
        """Add the tensor of a requested parameter; raises ApiError if the model lacks such an input."""
        if name not in self._model.inputs:
            raise unsupported(parameter, parameter)
        self.add(name, [value], kind)

    def ask_for(self, names: Sequence[str]) -> None:
        """Request the named outputs, except for outputs that the model lacks."""
        for name in names:
            if name in self._model.outputs:
                self.message.outputs.add(name=name)


NUMPY = {"INT32": np.int32, "UINT64": np.uint64, "FP32": np.float32, "BOOL": np.bool_}


def token_request(
    model: TritonModelInfo, ids: Sequence[int], asked: RequestParameters, seed: int, end: StopParameters, bias_len: int
) -> Any:
    """Return a request to a model with token ids as input and output, whose logit bias has `bias_len` values."""
    request = RequestBuilder(model)
    request.add("input_ids", ids, "INT32", (1, len(ids)))
    request.add("input_lengths", [len(ids)], "INT32")
    request.add("request_output_len", [asked.max_tokens], "INT32")
    request.add("end_id", [end.id], "INT32")
    request.add("streaming", [asked["stream"] and model.decoupled], "BOOL")
    if end.words:
        words = words_to_tensor(end.words)
        request.add("stop_words_list", words.ravel().tolist(), "INT32", (1, *words.shape))
    if asked.logit_bias:
        _check_bias(BIAS in model.inputs)
        request.add(BIAS, _dense(asked.logit_bias, bias_len), "FP32", (1, bias_len))
    _add_sampling(request, asked, seed, "runtime_", greedy_temperature=1.0)
    request.ask_for(["output_ids", "sequence_length", *COUNTS, *_log_probs(request, model, asked)])
    return request.message


def text_request(model: TritonModelInfo, text: str, asked: RequestParameters, seed: int) -> Any:
    """Return a request to a model with text as input and output."""
    _check_bias(not asked.logit_bias)  # a text model accepts words, and not every token is a word
    request = RequestBuilder(model)
    request.add("text_input", [text], "BYTES")
    if isinstance(text, RenderedText):
        request.add_optional(ADD_SPECIAL_TOKENS, False, "BOOL")
    request.add("max_tokens", [asked.max_tokens], "INT32")
    request.add("stream", [asked["stream"] and model.decoupled], "BOOL")
    if asked.stop:
        request.add("stop_words", asked.stop, "BYTES", (1, len(asked.stop)))
    if asked["ignore_eos"]:
        request.add_requested("ignore_eos", "end_id", NO_ID, "INT32")
    for name in ("return_num_input_tokens", "return_num_output_tokens"):
        request.add_optional(name, True, "BOOL")
    _add_sampling(request, asked, seed, "", greedy_temperature=0.0)
    log_probs = _log_probs(request, model, asked)
    request.ask_for(["text_output", "num_input_tokens", "num_output_tokens", *COUNTS, *log_probs])
    return request.message


def choice_seed(asked: RequestParameters, choice: int) -> int:
    """Return the seed of a choice: the request's seed for the first, a derived one for others; random if unset."""
    if asked["seed"] is None:
        return secrets.randbelow(SEEDS)
    if choice == 0:
        return int(asked["seed"]) % SEEDS
    digest = hashlib.blake2b(f"{asked['seed']} {choice}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % SEEDS


def read_outputs(response: Any) -> dict[str, bytes]:
    """Return the raw tensors of a response by name."""
    return dict(zip([output.name for output in response.outputs], response.raw_output_contents, strict=True))


def ints(raw: bytes | None) -> list[int]:
    """Return the values of an INT32 or UINT32 tensor."""
    return memoryview(raw).cast("i").tolist() if raw else []  # three times as fast as numpy


def floats(raw: bytes | None) -> list[float]:
    """Return the values of an FP32 tensor."""
    return np.frombuffer(raw, np.float32).tolist() if raw else []


def decode_text(raw: bytes | None) -> str:
    """Return the single string of a BYTES tensor."""
    return raw[4 : 4 + struct.unpack_from("<I", raw)[0]].decode(errors="replace") if raw else ""


def _texts(values: Iterable[str]) -> bytes:
    encoded = [value.encode() for value in values]
    return b"".join(struct.pack("<I", len(each)) + each for each in encoded)


def _add_sampling(
    request: RequestBuilder, asked: RequestParameters, seed: int, prefix: str, *, greedy_temperature: float
) -> None:
    """Add all sampling parameters, because the engines' defaults differ from OpenAI's.

    A model with its own defaults gets only the parameters that the request contains.
    """
    greedy = asked["temperature"] == 0 or asked["top_p"] == 0
    leaves_out = request.takes_model_defaults and not greedy
    for name, tensor, value, kind in (
        ("temperature", "temperature", greedy_temperature if greedy else asked["temperature"], "FP32"),
        ("top_k", f"{prefix}top_k", 1 if greedy else max(0, asked["top_k"]), "INT32"),
        ("top_p", f"{prefix}top_p", 1.0 if greedy else asked["top_p"], "FP32"),
    ):
        if name in asked.given or not leaves_out:
            request.add(tensor, [value], kind)
    request.add("seed", [seed], "UINT64")
    request.add_optional("exclude_input_in_output", True, "BOOL")
    request.add_optional("return_perf_metrics", True, "BOOL")
    for name, value, kind in _extra_parameters(asked, keeps_neutral=request.takes_model_defaults):
        request.add_requested(name, name, value, kind)
    if asked["presence_penalty"] or asked["frequency_penalty"]:
        request.add_optional("prompt_ignore_length", WHOLE_PROMPT, "INT32")


def _check_bias(is_served: bool) -> None:
    if not is_served:
        raise unsupported("logit_bias", "logit_bias")


def _dense(biases: Mapping[int, float], length: int) -> npt.NDArray[np.float32]:
    """Return the bias of each logit."""
    dense = np.zeros(length, np.float32)
    dense[[*biases]] = [*biases.values()]
    return dense


def _extra_parameters(asked: RequestParameters, *, keeps_neutral: bool) -> Iterator[tuple[str, Any, str]]:
    """Yield the parameters that differ from their defaults or, with `keeps_neutral`, that the request contains."""
    for name in PENALTIES:
        neutral = 1.0 if name == "repetition_penalty" else 0
        if asked[name] != neutral or (keeps_neutral and name in asked.given):
            yield name, asked[name], "INT32" if name == "min_tokens" else "FP32"
    if asked["num_draft_tokens"] is not None:
        yield "num_draft_tokens", asked["num_draft_tokens"], "INT32"


def _log_probs(request: RequestBuilder, model: TritonModelInfo, asked: RequestParameters) -> list[str]:
    """Request log probabilities if needed and return the names of their outputs."""
    if asked.top_logprobs is None:
        return []
    if not model.gives_log_probs:
        raise unsupported("logprobs", "logprobs")
    request.add("return_log_probs", [True], "BOOL")
    if not asked.top_logprobs:
        return [LOG_PROBS]
    if TOP_LOG_PROBS not in model.outputs:
        raise unsupported("top_logprobs greater than 0", "top_logprobs")
    request.add_requested("top_logprobs", "num_top_logprobs", asked.top_logprobs, "INT32")
    return [LOG_PROBS, TOP_LOG_PROBS, TOP_IDS]
