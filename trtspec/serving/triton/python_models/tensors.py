# SPDX-License-Identifier: Apache-2.0
"""What the Python models of the repository share: parameters, the tensors of a request and of its response.

Runs inside Triton's Python stub. The stub's own module is handed in, so that all of this runs without a server too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.core.errors import TrtspecError
from trtspec.serving.triton.nvidia_compat import MODEL, NVIDIA, PARAMETER
from trtspec.serving.triton.python_models.error_ids import fault_of, fault_words, new_fault
from trtspec.serving.triton.python_models.fields import OLDER, parameters_of, refuse_unknown, renamed, value_of

Array = npt.NDArray[Any]
NO_ID = -1
REFUSED, INTERNAL = "INVALID_ARG", "INTERNAL"  # Triton's names of kinds of errors
SHUTTING_DOWN = "the server is shutting down"

# Tensors that clients send with every request and no engine here acts on: the values that ask for nothing. A penalty of
# the length is of a search by beams: with one beam it has no effect, whatever it is.
NEUTRAL: dict[str, tuple[float, ...]] = {
    "beam_width": (0, 1),
    "num_return_sequences": (0, 1),
    "return_context_logits": (False,),
}
# Those that not every engine acts on.
NEUTRAL_SCORING: dict[str, tuple[float, ...]] = {
    "repetition_penalty": (1,),
    "min_tokens": (0, 1),
    "presence_penalty": (0,),
    "frequency_penalty": (0,),
    "return_log_probs": (False,),
    "num_top_logprobs": (0,),
}
BIASES = ("embedding_bias", "embedding_bias_weights")


class Settings:
    """A model's configuration as Triton hands it to `initialize`."""

    def __init__(self, args: Mapping[str, str]) -> None:
        self._config = json.loads(args["model_config"])
        self._root = Path(args["model_repository"])

    @property
    def decoupled(self) -> bool:
        """Return whether a request may have several responses."""
        return bool(self._config.get("model_transaction_policy", {}).get("decoupled"))

    @property
    def max_batch_size(self) -> int:
        return int(self._config["max_batch_size"])

    @property
    def max_queue_size(self) -> int:
        """Return how many requests may wait; artifacts of before say it of the server's queue, not of the model's."""
        policy = self._config.get("dynamic_batching", {}).get("default_queue_policy", {})
        return self.count("max_queue_size") or int(policy.get("max_queue_size", 0))

    @property
    def inputs(self) -> list[str]:
        """Return the names of the tensors that a request may bring."""
        return [tensor["name"] for tensor in self._config["input"]]

    def parameter(self, key: str) -> str:
        """Return a parameter's text; one that is missing is an error that names it."""
        try:
            return str(self._config["parameters"][key]["string_value"])
        except KeyError:
            raise TrtspecError(f"parameter {key!r} is missing", where=str(self._root / "config.pbtxt")) from None

    def count(self, key: str) -> int:
        """Return a parameter that is a number, 0 where an artifact of before has none."""
        return int(self.parameter(key)) if key in self._config["parameters"] else 0

    def flag(self, key: str) -> bool:
        """Return whether a parameter is true; one that is left out is not."""
        return bool(self._config["parameters"].get(key) == {"string_value": "true"})

    @property
    def is_nvidia(self) -> bool:
        """Return whether a request means what it does not say as NVIDIA's model of this name has it."""
        return bool(self._config["parameters"].get(PARAMETER) == {"string_value": NVIDIA})

    @property
    def takes_model_defaults(self) -> bool:
        """Return whether omitted fields of a request take the values of the model's generation_config.json."""
        return bool(self._config["parameters"].get(PARAMETER) == {"string_value": MODEL})

    def json(self, key: str) -> dict[str, Any]:
        """Return a parameter that is a JSON object."""
        try:
            value = json.loads(self.parameter(key))
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise TrtspecError(f"parameter {key!r} is not a JSON object", where=str(self._root / "config.pbtxt"))
        return value

    def path(self, key: str) -> Path | None:
        """Return a parameter as a path, relative ones from the model's directory; an empty one is None."""
        value = self.parameter(key)
        return (self._root / value).resolve() if value else None

    def required_path(self, key: str) -> Path:
        """Return a parameter as a path; an empty one is an error that names it."""
        if path := self.path(key):
            return path
        raise TrtspecError(f"parameter {key!r} names no path", where=str(self._root / "config.pbtxt"))

    def tokenizer(self) -> Tokenizer:
        """Load the tokenizer that `tokenizer_dir` names."""
        # Triton's stub starts no interpreter of ours; `deploy` tried the file
        return Tokenizer((self._root / self.parameter("tokenizer_dir")).resolve(), vetted=True)


class RequestTensors:
    """The input tensors of one request, which carries one prompt."""

    def __init__(self, pb_utils: Any, request: Any) -> None:
        self._get = pb_utils.get_input_tensor_by_name
        self._request = request
        self.parameters = parameters_of(request)

    def whole(self, name: str) -> Array | None:
        """Return a tensor with its batch dimension, also one with an older name; None where the client sent none.

        Raises TrtspecError for a request with both names and different values.
        """
        array = self.sent(name)
        if name not in OLDER or (other := self._older(name)) is None:
            return array
        if array is not None and array.tolist() != other.tolist():
            older = OLDER[name][0]
            said = f"{name} is {array.item()} and {older} is {other.item()}"
            raise TrtspecError(f"{said}: they are the same field", hint="send one of them")
        return other

    def sent(self, name: str) -> Array | None:
        """Return the tensor of just this name; None where the client sent none."""
        tensor = self._get(self._request, name)
        return None if tensor is None else tensor.as_numpy()

    def _older(self, name: str) -> Array | None:
        """Return the field by its older name: a tensor, or a parameter."""
        older, kind = OLDER[name]
        array = self.sent(older)
        if array is None and older in self.parameters:
            array = value_of(older, self.parameters[older], kind)
        return array

    def refuse_unknown(self, declared: Sequence[str], engine: str) -> None:
        """Raise TrtspecError for a field that is not one of the `declared` inputs, and that nothing reads."""
        refuse_unknown(self.parameters, declared, engine)

    @contextmanager
    def naming(self, names: Mapping[str, str] | None = None) -> Iterator[None]:
        """Name fields in errors as the request does: by `names`, and by older names where it has those."""
        try:
            yield
        except TrtspecError as error:
            used = {
                name: older
                for name, (older, _) in OLDER.items()
                if older in self.parameters or self.sent(older) is not None
            }
            message = renamed(error.message, names or {})
            # both stand in an error about two names of one field
            error.message = message if any(older in message for older in used.values()) else renamed(message, used)
            raise

    def array(self, name: str) -> Array | None:
        """Return a tensor without its batch dimension; None where the client sent none."""
        array = self.whole(name)
        if array is None:
            return None
        if array.shape[0] != 1:
            raise TrtspecError(
                f"{name} has {array.shape[0]} rows: send one prompt a request", hint="send several requests"
            )
        row: Array = array[0]
        return row

    def required(self, name: str) -> Array:
        """Return a tensor without its batch dimension; raises TrtspecError for a request without it."""
        array = self.array(name)
        if array is None:
            raise TrtspecError(f"the request has no {name}")
        return array

    def scalar(self, name: str, default: Any = None) -> Any:
        """Return the one value of a tensor as a Python value."""
        array = self.array(name)
        if array is None:
            return default
        if array.size != 1:
            raise TrtspecError(f"{name} has {array.size} values, expected one")
        return array.item()

    def numbers(self, name: str) -> list[Any]:
        """Return the values of a tensor; none where the client sent none."""
        array = self.array(name)
        return [] if array is None else array.reshape(-1).tolist()

    def texts(self, name: str) -> list[str]:
        """Return the strings of a tensor that are not empty."""
        array = self.array(name)
        items = [] if array is None else array.reshape(-1).tolist()
        try:
            return [item.decode() for item in items if item]
        except UnicodeDecodeError:
            raise TrtspecError(f"{name} is not UTF-8 text") from None


class HeldTensors(RequestTensors):
    """The input tensors of one request as they were, for a thread that reads them when the server's memory is gone."""

    def __init__(self, inputs: RequestTensors, names: Sequence[str]) -> None:
        found = ((name, inputs.sent(name)) for name in names)
        self._arrays = {name: array.copy() for name, array in found if array is not None}
        self.parameters = inputs.parameters

    def sent(self, name: str) -> Array | None:
        return self._arrays.get(name)


def refuse_other_than(neutral: Mapping[str, tuple[float, ...]], inputs: RequestTensors, engine: str) -> None:
    """Raise for the first input that has another value than the neutral ones."""
    for name, accepted in neutral.items():
        value = inputs.scalar(name)
        if value is not None and value not in accepted:
            raise TrtspecError(f"{name} {value:.6g} is not supported by {engine}")


def refuse_unsupported(inputs: RequestTensors, engine: str) -> None:
    """Raise for the first input that asks for what an engine does not do that neither edits nor tells logits."""
    refuse_other_than(NEUTRAL | NEUTRAL_SCORING, inputs, engine)
    if any(bias is not None and bias.any() for bias in map(inputs.array, BIASES)):
        raise TrtspecError(f"embedding_bias is not supported by {engine}")
    words = inputs.array("bad_words_list")
    if (words is not None and words_of_tensor(words)) or inputs.texts("bad_words"):
        raise TrtspecError(f"bad_words is not supported by {engine}")


def wants_stream(inputs: RequestTensors, name: str, *, decoupled: bool) -> bool:
    """Return whether the answer is to come in pieces; raises TrtspecError where the repository gives whole ones."""
    wanted = bool(inputs.scalar(name, False))
    if wanted and not decoupled:
        raise TrtspecError("stream is not served by this repository", hint="build it with serving.streaming: true")
    return wanted


def end_ids_of(tokenizer: Tokenizer, asked: int | None) -> tuple[int, ...]:
    """Return the ids that end a text: one of the tokenizer's own stands for all of them, -1 for none."""
    own = tokenizer.end_ids
    return own if asked is None or asked in own else (() if asked == NO_ID else (check_end_id(asked),))


def nvidia_end_ids(asked: int | None) -> tuple[int, ...]:
    """Return the one id that NVIDIA's tensorrt_llm ends a text at; without one all tokens are made."""
    return () if asked in (None, NO_ID) else (check_end_id(asked),)


def check_end_id(asked: int) -> int:
    """Return an id that is to end a text; TrtspecError for none, as what 2^31 is in 32 bits."""
    if asked < NO_ID:
        raise TrtspecError(f"end_id is {asked}, expected a token id, or {NO_ID} for none")
    return asked


def length_of(name: str, length: int, ids: Sequence[int]) -> int:
    """Return how many of `ids` count; TrtspecError where that is more than there are, or less than none."""
    if not 0 <= length <= len(ids):
        raise TrtspecError(f"{name} is {length}, expected 0 to {len(ids)}, which is as many as there are tokens")
    return length


def check_ids(name: str, ids: Sequence[int]) -> Sequence[int]:
    """Return token ids; TrtspecError where one is negative, which no tokenizer takes."""
    if odd := next((token for token in ids if token < 0), None):
        raise TrtspecError(f"{name} has the token id {odd}, expected 0 or more")
    return ids


def tensor_of_words(words: Sequence[Sequence[int]]) -> npt.NDArray[np.int32]:
    """Return words as NVIDIA's [2, n] tensor: the ids of all, and where each ends; padded with 0 and -1."""
    ids = [token for word in words for token in word]
    ends = np.cumsum([len(word) for word in words], dtype=np.int32)
    tensor = np.array([[0], [-1]], np.int32).repeat(max(1, len(ids)), axis=1)
    tensor[0, : len(ids)] = ids
    tensor[1, : len(ends)] = ends
    return tensor


def words_of_tensor(tensor: Array) -> list[list[int]]:
    """Return the words of a [2, n] tensor."""
    if tensor.ndim != 2 or tensor.shape[0] != 2:
        raise TrtspecError(
            f"a word list has the shape {list(tensor.shape)}, expected [2, n]: ids and where each word ends"
        )
    ids, ends = tensor.tolist()
    bounds = [0, *(end for end in ends if end > 0)]
    if bounds != sorted(set(bounds)) or bounds[-1] > len(ids):
        raise TrtspecError(f"a word list has the ends {bounds[1:]}, expected rising numbers up to {len(ids)}")
    return [ids[start:end] for start, end in pairwise(bounds)]


def read_sampling(
    inputs: RequestTensors, prefix: str = "", defaults: Mapping[str, float] = MappingProxyType({})
) -> dict[str, Any]:
    """Return how to sample, as TensorRT-LLM's executor does: greedy unless top_k or top_p ask for more than one token.

    A temperature alone does not, and a top_p of 0 is none (NVIDIA/TensorRT-LLM:cpp/tensorrt_llm/layers/
    defaultDecodingParams.h@1020a8d7, triton_backend's utils.cc). With neither limit, `top_p` 1 samples from all tokens.
    `defaults` are the values of omitted ones.
    """
    top_k = inputs.scalar(f"{prefix}top_k", int(defaults.get("top_k", 0)))
    top_p = inputs.scalar(f"{prefix}top_p", defaults.get("top_p", 0.0))
    temperature = inputs.scalar("temperature", defaults.get("temperature", 1.0))
    if (top_k == 1 or (top_k == 0 and top_p <= 0)) and temperature >= 0:
        temperature = 0.0
    return {
        "temperature": temperature,
        "top_k": top_k,
        "top_p": top_p if top_p > 0 else 1.0,
        "seed": inputs.scalar("seed", 0),
    }


class Counts(Protocol):
    """What a text took so far, in tokens."""

    @property
    def prompt_tokens(self) -> int: ...

    @property
    def new_tokens(self) -> int: ...

    @property
    def drafted(self) -> int: ...

    @property
    def accepted(self) -> int: ...

    @property
    def draft_steps(self) -> int: ...

    @property
    def accepted_by_position(self) -> Sequence[int]: ...


def count_tensors(counts: Counts) -> list[tuple[str, Array]]:
    """Return the output tensors that say what a text took."""
    rate = counts.accepted / counts.drafted if counts.drafted else 0.0
    return [
        ("acceptance_rate", np.array([[rate]], np.float32)),
        ("total_accepted_draft_tokens", np.array([[counts.accepted]], np.int32)),
        ("total_draft_tokens", np.array([[counts.drafted]], np.int32)),
        ("num_draft_steps", np.array([[counts.draft_steps]], np.int32)),
        ("accepted_by_position", np.array([counts.accepted_by_position or (0,)], np.int32)),
        ("num_input_tokens", np.array([[counts.prompt_tokens]], np.int32)),
        ("num_output_tokens", np.array([[counts.new_tokens]], np.int32)),
    ]


def respond(pb_utils: Any, make: Callable[[], list[tuple[str, Array]]], wanted: Container[str]) -> Any:
    """Return the response that has the wanted ones of the tensors that `make` returns.

    The wanted ones are those that the request names. Sending any other ends the stub of tritonserver before 2.53 on
    Python 3.12 and newer: it frees them without Python's lock (python_backend#390). What goes wrong in `make` is this
    request's error and nobody else's.
    """
    try:
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, array) for name, array in make() if name in wanted])
    except Exception as error:
        return failure(pb_utils, error)


def respond_each(
    pb_utils: Any, requests: list[Any], make: Callable[[RequestTensors], list[tuple[str, Array]]]
) -> list[Any]:
    """Return a response for each request, of the tensors that `make` returns for its inputs."""
    return [
        respond(pb_utils, partial(_made, pb_utils, request, make), request.requested_output_names())
        for request in requests
    ]


def _made(
    pb_utils: Any, request: Any, make: Callable[[RequestTensors], list[tuple[str, Array]]]
) -> list[tuple[str, Array]]:
    return make(RequestTensors(pb_utils, request))


def cancelled(pb_utils: Any) -> Any:
    """Return the response to a client that left."""
    error = pb_utils.TritonError("the request was cancelled", pb_utils.TritonError.CANCELLED)
    return pb_utils.InferenceResponse(error=error)


def shutting_down(pb_utils: Any) -> Any:
    """Return the response to a client whose text is not whole when the server ends."""
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(SHUTTING_DOWN, pb_utils.TritonError.UNAVAILABLE))


def failure(pb_utils: Any, error: Exception) -> Any:
    """Return an error response; the server's log has what no client can act on, under an id that the client gets."""
    status = getattr(error, "status", REFUSED) if isinstance(error, TrtspecError) else INTERNAL
    message = _told(pb_utils, error) if status == INTERNAL else str(error)
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(message, getattr(pb_utils.TritonError, status)))


def _told(pb_utils: Any, error: Exception) -> str:
    """Return what a client is told of an internal error; one of another model has its id and is in the log."""
    fault = fault_of(str(error))
    if fault is None:
        import traceback

        fault = new_fault()
        pb_utils.Logger.log_error(f"internal error {fault}: {''.join(traceback.format_exception(error))}")
    return fault_words(fault, "the server's")
