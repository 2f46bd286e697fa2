# SPDX-License-Identifier: Apache-2.0
"""Tensors that change logits or return log probabilities: NVIDIA's, and extensions.

`prompt_ignore_length` is from TensorRT-LLM 1.2; `num_top_logprobs`, `top_logprobs` and `top_logprob_ids` are extensions
of trtspec.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from trtspec.engine.generation.logit_edits import NO_EDITS, LogitEdits
from trtspec.engine.generation.scores import Scores
from trtspec.serving.triton.python_models.tensors import Array, RequestTensors, tensor_to_words


def read_edits(inputs: RequestTensors, defaults: LogitEdits = NO_EDITS) -> LogitEdits:
    """Return the changes of the target's logits that a request contains.

    Omitted tensors take the values of `defaults`. Bad words and biases of `defaults`, and its settings without a
    tensor, apply in addition to the request's.
    """
    words, bias = inputs.array("bad_words_list"), inputs.array("embedding_bias")
    return LogitEdits(
        repetition_penalty=inputs.scalar("repetition_penalty", defaults.repetition_penalty),
        presence_penalty=inputs.scalar("presence_penalty", 0.0),
        frequency_penalty=inputs.scalar("frequency_penalty", 0.0),
        prompt_ignore_len=inputs.scalar("prompt_ignore_length", 0),
        min_tokens=inputs.scalar("min_tokens", defaults.min_tokens),
        bad_words=(*defaults.bad_words, *(() if words is None else map(tuple, tensor_to_words(words)))),
        bias={
            **defaults.bias,
            **({} if bias is None else {int(token): float(bias[token]) for token in np.flatnonzero(bias)}),
        },
        no_repeat_ngram=defaults.no_repeat_ngram,
        begin_suppressed=defaults.begin_suppressed,
    )


def read_score_options(inputs: RequestTensors) -> dict[str, Any]:
    """Return the scores that a request asks for, as keyword arguments of the engine's Request."""
    top = inputs.scalar("num_top_logprobs", 0)
    return {
        "return_logits": inputs.scalar("return_generation_logits", False),
        "return_log_probs": inputs.scalar("return_log_probs", False) or top != 0,
        "num_top_log_probs": top,
    }


def score_tensors(scores: Scores, cum_log_prob: float) -> list[tuple[str, Array]]:
    """Return the output tensors of one beam's tokens; `cum_log_prob` covers the completion so far."""
    found: list[tuple[str, Array]] = []
    if scores.logits is not None:
        found.append(("generation_logits", scores.logits[None, None]))
    if scores.log_probs is not None and scores.top_log_probs is not None and scores.top_ids is not None:
        found += [
            ("output_log_probs", scores.log_probs[None, None]),
            ("cum_log_probs", np.array([[cum_log_prob]], np.float32)),
            ("top_logprobs", scores.top_log_probs[None]),
            ("top_logprob_ids", scores.top_ids[None]),
        ]
    return found
