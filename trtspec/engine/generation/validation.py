# SPDX-License-Identifier: Apache-2.0
"""Validates requests before they are queued."""

from __future__ import annotations

import math

import numpy as np

from trtspec.core.errors import TrtspecError
from trtspec.engine.generation.request import EngineRequest, SamplingOptions, TokenLimits, find_edit_errors

MOST_LOG_PROBS = 20  # OpenAI's limit


def check_request(request: EngineRequest, limits: TokenLimits, vocab_size: int, has_tokenizer: bool) -> None:
    """Raise TrtspecError with the invalid value if the engine cannot serve a request."""
    errors = (
        _text_errors(request, limits, vocab_size)
        | _sampling_errors(request.sampling)
        | _draft_errors(request, vocab_size)
        | find_edit_errors(request.edits, vocab_size)
        | {
            f"num_top_logprobs is {request.num_top_log_probs}, expected 0 to {MOST_LOG_PROBS}": (
                not 0 <= request.num_top_log_probs <= MOST_LOG_PROBS
            ),
            "a stop text is empty": any(not stop for stop in request.stop),
            "stop texts need the engine to have a tokenizer": bool(request.stop) and not has_tokenizer,
        }
    )
    for message, applies in errors.items():
        if applies:
            raise TrtspecError(message)


def _text_errors(request: EngineRequest, limits: TokenLimits, vocab_size: int) -> dict[str, bool]:
    prompt = request.prompt_ids
    total = len(prompt) + request.max_new_tokens
    return {
        "the prompt is empty": not prompt,
        f"max_tokens is {request.max_new_tokens}, expected at least 1": request.max_new_tokens < 1,
        f"the prompt has a token id outside 0..{vocab_size - 1}": _is_outside(prompt, vocab_size),
        f"the prompt has {len(prompt)} tokens, expected at most {limits.max_input_len} (engine.max_input_len)": (
            limits.max_input_len is not None and len(prompt) > limits.max_input_len
        ),
        f"prompt and max_tokens are {total} tokens together, at most {limits.max_seq_len} fit (engine.max_seq_len)": (
            total > limits.max_seq_len
        ),
    }


def _sampling_errors(sampling: SamplingOptions) -> dict[str, bool]:
    return {
        f"temperature is {sampling.temperature}, expected 0 or more": (
            not math.isfinite(sampling.temperature) or sampling.temperature < 0
        ),
        f"top_k is {sampling.top_k}, expected 0 (all) or more": sampling.top_k < 0,
        f"top_p is {sampling.top_p}, expected more than 0 and at most 1": not 0 < sampling.top_p <= 1,
        f"seed is {sampling.seed}, expected 0 to 2^64 - 1": not 0 <= sampling.seed < 1 << 64,
    }


def _draft_errors(request: EngineRequest, vocab_size: int) -> dict[str, bool]:
    ids, logits = request.draft_ids, request.draft_logits
    errors = {
        f"the draft length is {request.draft_len}, expected 0 or more": (request.draft_len or 0) < 0,
        f"the draft has a token id outside 0..{vocab_size - 1}": _is_outside(ids, vocab_size),
    }
    if logits is not None:
        expected = (len(ids), vocab_size)
        errors[f"draft logits are {_shape(logits.shape)}, expected {_shape(expected)}: tokens and vocabulary"] = (
            logits.shape != expected
        )
        # the maximum of a row with NaN is NaN; a row of only -inf is not a valid distribution either
        errors["a row of draft logits has NaN, infinity or no finite value"] = (
            logits.size > 0 and not np.isfinite(logits.max(-1)).all()
        )
    return errors


def _is_outside(ids: tuple[int, ...], vocab_size: int) -> bool:
    return any(not 0 <= token < vocab_size for token in ids)


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))
