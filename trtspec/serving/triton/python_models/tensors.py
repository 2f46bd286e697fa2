# SPDX-License-Identifier: Apache-2.0
"""Code shared by the repository's Python models: settings and request tensors.

It runs inside Triton's Python stub. The stub's module is passed as `pb_utils`, so the code also runs without a server.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.core.errors import TrtspecError
from trtspec.engine.generation.model_defaults import load_model_defaults
from trtspec.serving.triton.nvidia_compat import MODEL, NVIDIA, PARAMETER
from trtspec.serving.triton.python_models.fields import (
    NEUTRAL,
    OLDER_NAMES,
    UNSERVED,
    check_field_names,
    parameter_array,
    rename_fields,
    request_parameters,
)

Array = npt.NDArray[Any]
NO_ID = -1

# No-op values of tensors that clients send with every request and no engine here supports. A length penalty affects
# beam search only, so any value is accepted.
NEUTRAL_FIELDS: dict[str, tuple[float, ...]] = {
    "beam_width": (0, 1),
    "num_return_sequences": (0, 1),
    "return_context_logits": (False,),
}
# No-op values of tensors that only some engines support.
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
    """A model's configuration, from the arguments of Triton's `initialize`."""

    def __init__(self, args: Mapping[str, str]) -> None:
        self._config = json.loads(args["model_config"])
        self._root = Path(args["model_repository"])

    @property
    def decoupled(self) -> bool:
        """Return True if a request may have several responses."""
        return bool(self._config.get("model_transaction_policy", {}).get("decoupled"))

    @property
    def max_batch_size(self) -> int:
        return int(self._config["max_batch_size"])

    @property
    def max_queue_size(self) -> int:
        """Return the maximum number of waiting requests, which old artifacts set in the server's queue policy."""
        policy = self._config.get("dynamic_batching", {}).get("default_queue_policy", {})
        return self.count("max_queue_size") or int(policy.get("max_queue_size", 0))

    @property
    def inputs(self) -> list[str]:
        """Return the names of the inputs that the model declares."""
        return [tensor["name"] for tensor in self._config["input"]]

    def parameter(self, key: str) -> str:
        """Return a parameter of the configuration as text; raises TrtspecError if it is missing."""
        try:
            return str(self._config["parameters"][key]["string_value"])
        except KeyError:
            raise TrtspecError(f"parameter {key!r} is missing", where=str(self._root / "config.pbtxt")) from None

    def count(self, key: str) -> int:
        """Return an integer parameter; 0 if it is missing, as in old artifacts."""
        return int(self.parameter(key)) if key in self._config["parameters"] else 0

    @property
    def draft_len(self) -> int | None:
        """Return the engine's draft length, 0 without speculation; None in old artifacts, which do not have it."""
        return self.count("draft_len") if "draft_len" in self._config["parameters"] else None

    def flag(self, key: str) -> bool:
        """Return True if a parameter is "true", and False if it is missing."""
        return bool(self._config["parameters"].get(key) == {"string_value": "true"})

    @property
    def is_nvidia(self) -> bool:
        """Return True if omitted fields of a request take NVIDIA's defaults."""
        return bool(self._config["parameters"].get(PARAMETER) == {"string_value": NVIDIA})

    @property
    def takes_model_defaults(self) -> bool:
        """Return True if omitted request fields take the values of the model's generation_config.json."""
        return bool(self._config["parameters"].get(PARAMETER) == {"string_value": MODEL})

    @property
    def sampling_defaults(self) -> Mapping[str, float]:
        """Return the sampling options of the model's generation_config.json if they are the defaults, else {}.

        Raises CheckpointError if one is invalid.
        """
        return load_model_defaults(self.required_path("tokenizer_dir")).sampling if self.takes_model_defaults else {}

    def json(self, key: str) -> dict[str, Any]:
        """Return a parameter that is a JSON object; raises TrtspecError if it is something else."""
        try:
            value = json.loads(self.parameter(key))
        except ValueError:
            value = None
        if not isinstance(value, dict):
            raise TrtspecError(f"parameter {key!r} is not a JSON object", where=str(self._root / "config.pbtxt"))
        return value

    def path(self, key: str) -> Path | None:
        """Return a path relative to the model's directory as an absolute path, or None if the parameter is empty."""
        value = self.parameter(key)
        return (self._root / value).resolve() if value else None

    def required_path(self, key: str) -> Path:
        """Return a path parameter as an absolute path; raises TrtspecError if it is empty."""
        if path := self.path(key):
            return path
        raise TrtspecError(f"parameter {key!r} is empty, expected a path", where=str(self._root / "config.pbtxt"))

    def tokenizer(self) -> Tokenizer:
        """Load the tokenizer from the directory that the parameter `tokenizer_dir` names."""
        # Vetting starts another interpreter, which Triton's stub cannot do; `deploy` has vetted the file.
        return Tokenizer((self._root / self.parameter("tokenizer_dir")).resolve(), vetted=True)


class RequestTensors:
    """The input tensors and parameters of one request, which has one prompt."""

    def __init__(self, pb_utils: Any, request: Any) -> None:
        self._get = pb_utils.get_input_tensor_by_name
        self._request = request
        self.parameters = request_parameters(request)

    def full_array(self, name: str) -> Array | None:
        """Return an input with its batch dimension, or None if the client did not send it.

        The input may also have its older name (OLDER_NAMES). Raises TrtspecError if a request has both names with
        different values.
        """
        array = self.sent(name)
        if name not in OLDER_NAMES:
            return array
        older, kind = OLDER_NAMES[name]
        other = self.sent(older)
        if other is None and older in self.parameters:
            other = parameter_array(older, self.parameters[older], kind)
        if other is None:
            return array
        if array is not None and array.tolist() != other.tolist():
            values = f"{name} is {array.item()} and {older} is {other.item()}"
            raise TrtspecError(f"{values}: they are the same field", hint="send one of them")
        return other

    def sent(self, name: str) -> Array | None:
        """Return the input with exactly this name, or None if the client did not send it."""
        tensor = self._get(self._request, name)
        return None if tensor is None else tensor.as_numpy()

    def reject_undeclared(self, declared: Sequence[str], engine: str) -> None:
        """Raise TrtspecError for a request parameter that is neither in `declared` nor otherwise supported."""
        check_field_names(self.parameters, declared, engine)

    @contextmanager
    def naming(self, names: Mapping[str, str] | None = None) -> Iterator[None]:
        """Context manager that replaces the field names in TrtspecError messages by the client's names.

        `names` maps this model's names to the client's. Older names are used if the request contains them.
        """
        try:
            yield
        except TrtspecError as error:
            used = {
                name: older
                for name, (older, _) in OLDER_NAMES.items()
                if older in self.parameters or self.sent(older) is not None
            }
            message = rename_fields(error.message, names or {})
            # an error about two names of one field contains both
            error.message = (
                message if any(older in message for older in used.values()) else rename_fields(message, used)
            )
            raise

    def array(self, name: str) -> Array | None:
        """Return an input without its batch dimension, or None if not sent; raises TrtspecError for several rows."""
        array = self.full_array(name)
        if array is None:
            return None
        if array.shape[0] != 1:
            raise TrtspecError(
                f"{name} has {array.shape[0]} rows: send one prompt per request", hint="send several requests"
            )
        row: Array = array[0]
        return row

    def required(self, name: str) -> Array:
        """Return an input without its batch dimension; raises TrtspecError if the request does not have it."""
        array = self.array(name)
        if array is None:
            raise TrtspecError(f"the request lacks {name}")
        return array

    def scalar(self, name: str, default: Any = None) -> Any:
        """Return an input's only value, or `default` if not sent; raises TrtspecError if it has several values."""
        array = self.array(name)
        if array is None:
            return default
        if array.size != 1:
            raise TrtspecError(f"{name} has {array.size} values, expected one")
        return array.item()

    def values(self, name: str) -> list[Any]:
        """Return the values of an input as a flat list; [] if the client did not send it."""
        array = self.array(name)
        return [] if array is None else array.reshape(-1).tolist()

    def texts(self, name: str) -> list[str]:
        """Return the nonempty strings of an input; raises TrtspecError if one is not UTF-8."""
        try:
            return [item.decode() for item in self.values(name) if item]
        except UnicodeDecodeError:
            raise TrtspecError(f"{name} is not UTF-8 text") from None


class HeldTensors(RequestTensors):
    """A copy of a request's inputs, for threads that outlive the server's buffers."""

    def __init__(self, inputs: RequestTensors, names: Sequence[str]) -> None:
        found = ((name, inputs.sent(name)) for name in names)
        self._arrays = {name: array.copy() for name, array in found if array is not None}
        self.parameters = inputs.parameters

    def sent(self, name: str) -> Array | None:
        return self._arrays.get(name)


def require_neutral(neutral: Mapping[str, tuple[float, ...]], inputs: RequestTensors, engine: str) -> None:
    """Raise TrtspecError for the first input whose value is not one of its no-op values in `neutral`."""
    for name, accepted in neutral.items():
        value = inputs.scalar(name)
        if value is not None and value not in accepted:
            raise TrtspecError(f"{name} {value:.6g} is not supported by {engine}")


def check_unsupported(inputs: RequestTensors, engine: str) -> None:
    """Raise TrtspecError for the first input that an engine without (edited) logits and log probabilities rejects."""
    require_neutral(NEUTRAL_FIELDS | NEUTRAL_SCORING, inputs, engine)
    if any(bias is not None and bias.any() for bias in map(inputs.array, BIASES)):
        raise TrtspecError(f"embedding_bias is not supported by {engine}")
    words = inputs.array("bad_words_list")
    if (words is not None and decode_token_lists(words)) or inputs.texts("bad_words"):
        raise TrtspecError(f"bad_words is not supported by {engine}")
    if inputs.scalar("return_generation_logits", False):
        raise TrtspecError(f"return_generation_logits is not supported by {engine}")


def check_unsupported_inputs(
    inputs: RequestTensors, declared: Collection[str], engine: str, served: Collection[str] = ()
) -> None:
    """Raise TrtspecError for the first unsupported input in `declared` that is neither empty nor a no-op.

    `served` are the inputs that this engine supports, although others do not.
    """
    names = UNSERVED.intersection(declared).difference(served)
    require_neutral({name: NEUTRAL[name] for name in names & NEUTRAL.keys()}, inputs, engine)
    for name in sorted(names - NEUTRAL.keys()):
        if _is_set(inputs.full_array(name)):
            raise TrtspecError(f"{name} is not supported by {engine}", hint="leave it out")


def check_draft_tokens(inputs: RequestTensors, draft_len: int | None, engine: str) -> None:
    """Raise TrtspecError if a request drafts fewer tokens than an engine whose `draft_len` is fixed.

    As for the other engines, num_draft_tokens is an upper limit, so larger values do not change anything. If the draft
    length is unknown, every value is an error.
    """
    drafted = inputs.scalar("num_draft_tokens")
    if drafted is not None and drafted < 0:
        raise TrtspecError(f"num_draft_tokens is {drafted}, expected 0 or more")
    if drafted is not None and (draft_len is None or drafted < draft_len):
        length = "" if draft_len is None else f" {draft_len}"
        message = f"num_draft_tokens {drafted} is not supported by {engine}"
        message += f", whose draft length{length} is the same for all requests"
        hint = "leave it out; also serve the recipe with a smaller speculation.draft_len, or with method: none"
        raise TrtspecError(message, hint=hint)


def _is_set(array: Array | None) -> bool:
    if array is None or array.size == 0:
        return False
    return any(array.reshape(-1).tolist()) if array.dtype == object else True


def wants_stream(inputs: RequestTensors, name: str, *, decoupled: bool) -> bool:
    """Return the boolean input `name`, which requests streaming; raises TrtspecError if it is unsupported."""
    wanted = bool(inputs.scalar(name, False))
    if wanted and not decoupled:
        raise TrtspecError("stream is not supported by this repository", hint="build it with serving.streaming: true")
    return wanted


def request_end_ids(tokenizer: Tokenizer, asked: int | None, *, is_nvidia: bool) -> tuple[int, ...]:
    """Return the token ids that end a completion whose request has the `end_id` `asked`.

    These are all end ids of the tokenizer if `asked` is None or one of them, and none if it is -1. With `is_nvidia`,
    only `asked` itself ends the completion; if it is None, all requested tokens are generated.
    """
    own = () if is_nvidia else tokenizer.end_ids
    if asked is None or asked in own:
        return own
    return () if asked == NO_ID else (check_end_id(asked),)


def check_end_id(asked: int) -> int:
    """Return a valid end id unchanged; raises TrtspecError if it is below -1, such as 2^31 as int32."""
    if asked < NO_ID:
        raise TrtspecError(f"end_id is {asked}, expected a token id, or {NO_ID} for none")
    return asked


def checked_length(name: str, length: int, ids: Sequence[int]) -> int:
    """Return `length`, the number of valid `ids`; raises TrtspecError if it is negative or too large."""
    if not 0 <= length <= len(ids):
        raise TrtspecError(f"{name} is {length}, expected 0 to {len(ids)}, the number of tokens")
    return length


def check_ids(name: str, ids: Sequence[int]) -> Sequence[int]:
    """Return token ids unchanged; raises TrtspecError if one is negative, which tokenizers do not accept."""
    if odd := next((token for token in ids if token < 0), None):
        raise TrtspecError(f"{name} has the token id {odd}, expected 0 or more")
    return ids


def encode_token_lists(words: Sequence[Sequence[int]]) -> npt.NDArray[np.int32]:
    """Encode token sequences as NVIDIA's word list tensor `[2, n]`.

    Row 0 has the ids of all sequences, padded with 0. Row 1 has the end offset of each sequence, padded with -1.
    """
    ids = [token for word in words for token in word]
    ends = np.cumsum([len(word) for word in words], dtype=np.int32)
    tensor = np.array([[0], [-1]], np.int32).repeat(max(1, len(ids)), axis=1)
    tensor[0, : len(ids)] = ids
    tensor[1, : len(ends)] = ends
    return tensor


def decode_token_lists(tensor: Array) -> list[list[int]]:
    """Decode NVIDIA's word list tensor `[2, n]` as token sequences; raises TrtspecError if it is invalid."""
    if tensor.ndim != 2 or tensor.shape[0] != 2:
        raise TrtspecError(
            f"a word list has the shape {list(tensor.shape)}, expected [2, n]: ids and where each word ends"
        )
    ids, ends = tensor.tolist()
    bounds = [0, *(end for end in ends if end > 0)]
    if bounds != sorted(set(bounds)) or bounds[-1] > len(ids):
        raise TrtspecError(f"a word list has the ends {bounds[1:]}, expected increasing numbers up to {len(ids)}")
    return [ids[start:end] for start, end in pairwise(bounds)]


def read_sampling(
    inputs: RequestTensors, prefix: str = "", defaults: Mapping[str, float] = MappingProxyType({})
) -> dict[str, Any]:
    """Return the sampling options as TensorRT-LLM's executor reads them: greedy unless top_k or top_p allow sampling.

    A temperature alone does not enable sampling, and a top_p of 0 means unset (NVIDIA/TensorRT-LLM:cpp/tensorrt_llm/
    layers/defaultDecodingParams.h@1020a8d7, triton_backend's utils.cc). With neither limit, `top_p` 1 samples from all
    tokens. `prefix` precedes the names of the top_k and top_p inputs. `defaults` are the values of omitted fields.
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
