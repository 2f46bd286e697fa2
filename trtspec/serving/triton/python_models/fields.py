# SPDX-License-Identifier: Apache-2.0
"""Names of request fields: current and older names, unsupported ones, and suggestions for misspelled ones.

Triton turns each key of `generate` that is not an input into a parameter of the request, and NVIDIA's models ignore
parameters, so a misspelled `temperature` would be ignored silently. The names are from NVIDIA's models v0.5.0 to
v0.17.0 (triton-inference-server/tensorrtllm_backend:all_models/inflight_batcher_llm), and of clients:
`async_request_trt_llm` (vllm-project/vllm:vllm/benchmarks, sgl-project/sglang:python/sglang/bench_serving.py) sends
`accumulate_tokens` and `min_length`, genai-perf (triton-inference-server/perf_analyzer) `min_length` and `model`.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from trtspec.core.errors import TrtspecError
from trtspec.serving.triton.names import CHANNEL_PARAMETER, COUNTS_PARAMETER, STREAM_PARAMETER
from trtspec.serving.triton.nvidia_compat import INPUTS, unsupported_inputs
from trtspec.serving.triton.python_models.interruptions import CLIENT_PARAMETER

Kind: TypeAlias = "type[np.uint64] | type[np.int32] | type[np.bool_]"

# Older names of inputs in NVIDIA's models, by current name.
OLDER_NAMES: dict[str, tuple[str, Kind]] = {
    "seed": ("random_seed", np.uint64),
    "min_tokens": ("min_length", np.int32),
    "return_perf_metrics": ("return_kv_cache_reuse_stats", np.bool_),
}
# Names of fields in text-level models, mapped to the names in token-level models.
TOKEN_NAMES = {
    "max_tokens": "request_output_len",
    "top_k": "runtime_top_k",
    "top_p": "runtime_top_p",
    "length_penalty": "len_penalty",
    "stream": "streaming",
    "stop_words": "stop_words_list",
    "bad_words": "bad_words_list",
}
TEXT_NAMES = {inner: outer for outer, inner in TOKEN_NAMES.items()}
# Names used by other APIs, mapped to the names of these models.
FOREIGN_NAMES = {
    "output_len": "max_tokens",
    "max_new_tokens": "max_tokens",
    "max_output_len": "max_tokens",
    "max_length": "max_tokens",
    "min_new_tokens": "min_tokens",
    "stop": "stop_words",
    "n": "num_return_sequences",
    "best_of": "beam_width",
    "logit_bias": "embedding_bias_words",
    "prompt": "text_input",
    "echo": "exclude_input_in_output",
    "logprobs": "return_log_probs",
}
# Fields of Triton's protocol, and fields sent by clients that do not affect NVIDIA's models either.
TRITON = (
    "id",
    "model",
    "priority",
    "timeout",
    "sequence_id",
    "sequence_start",
    "sequence_end",
    "binary_data_output",
    "accumulate_tokens",
    CLIENT_PARAMETER,
    CHANNEL_PARAMETER,
    STREAM_PARAMETER,
    COUNTS_PARAMETER,
)
TRITON_PREFIX = "triton_"
UNSERVED = frozenset(name for model in INPUTS for name in unsupported_inputs(model))
# No-op values of unsupported inputs; the first two affect beam search only.
NEUTRAL: dict[str, tuple[float, ...]] = {
    "early_stopping": (False, True),
    "beam_search_diversity_rate": (0,),
    "runtime_top_p_min": (0,),
    "runtime_top_p_decay": (1,),
    "runtime_top_p_reset_ids": (-1,),
    "prompt_vocab_size": (0,),
}
MAX_SHOWN = 64
MAX_CACHED = 4096
ENCODER = json.JSONEncoder()


def request_parameters(request: Any) -> Mapping[str, Any]:
    """Return the parameters of a request; empty if this Triton's Python backend does not report them."""
    text = request.parameters() if hasattr(request, "parameters") else ""
    if not text:
        return {}
    return _parsed(text) if len(text) <= MAX_CACHED else _parsed.__wrapped__(text)


@lru_cache(maxsize=4)  # each request is asked several times
def _parsed(text: str) -> Mapping[str, Any]:
    found: dict[str, Any] = json.loads(text)
    return MappingProxyType(found)


def check_field_names(parameters: Mapping[str, Any], declared: Collection[str], engine: str) -> None:
    """Raise TrtspecError for the first unknown parameter, with the closest `declared` input as a hint."""
    older = {name for name, _ in OLDER_NAMES.values()}
    for name, value in parameters.items():
        if name in older or name in TRITON or name.startswith(TRITON_PREFIX):
            continue
        if name in ("length_penalty", "len_penalty") and _is_number(value):
            continue  # no effect with a single beam
        if name in UNSERVED:
            if value not in NEUTRAL.get(name, ("", False)):
                raise TrtspecError(f"{name} {json_preview(value)} is not supported by {engine}", hint="leave it out")
            continue
        raise TrtspecError(f"unknown field {json_preview(name)}", hint=_hint(name, {*declared, *older}))


def parameter_array(name: str, value: Any, kind: Kind) -> Any:
    """Return a request parameter as an input array `[1, 1]` of type `kind`; raises TrtspecError if invalid."""
    if kind is np.bool_:
        if isinstance(value, bool):
            return np.array([[value]])
        raise TrtspecError(f"{name} is {json_preview(value)}, expected true or false")
    bounds = np.iinfo(kind)  # type: ignore[type-var]
    whole = _is_number(value) and value == int(value)
    if not whole or not bounds.min <= value <= bounds.max:
        raise TrtspecError(f"{name} is {json_preview(value)}, expected an integer from {bounds.min} to {bounds.max}")
    return np.array([[int(value)]], kind)


def rename_fields(message: str, names: Mapping[str, str]) -> str:
    """Return a message in which field names are replaced where they occur as whole words."""
    if not names:
        return message
    pattern = rf"(?<![\w.\"])({'|'.join(map(re.escape, names))})(?!\w)"
    return re.sub(pattern, lambda match: names[match[0]], message)


def json_preview(value: Any) -> str:
    """Return a value as JSON, truncated to MAX_SHOWN characters; reads only the start of a large value."""
    text = ""
    for part in ENCODER.iterencode(value[:MAX_SHOWN] if isinstance(value, str) else value):
        text += part[:MAX_SHOWN]
        if len(text) > MAX_SHOWN:
            return f"{text[: MAX_SHOWN - 4]}..."
    return text


def _hint(name: str, known: Collection[str]) -> str:
    same = FOREIGN_NAMES.get(name, name)
    for near in (same, TOKEN_NAMES.get(same), TEXT_NAMES.get(same)):
        if near in known and near != name:
            return f"did you mean {near}?"
    if name == "ignore_eos":
        return "to continue after the end token, send end_id -1"
    close = difflib.get_close_matches(name[:MAX_SHOWN], known, 1)
    return f"did you mean {close[0]}?" if close else "leave it out; the model's configuration lists its inputs"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < float("inf")
