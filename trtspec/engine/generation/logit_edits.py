# SPDX-License-Identifier: Apache-2.0
"""A request's changes to the target's logits before sampling: penalties, biases and forbidden tokens.

TensorRT-LLM, vLLM and transformers differ; Triton clients, which may expect any of them, get this:

* `repetition_penalty` counts prompt and output in all three.
* `presence_penalty` and `frequency_penalty` count the prompt too in TensorRT-LLM
  (cpp/tensorrt_llm/kernels/penaltyKernels.cu@249d93d5), but only the output in OpenAI's definition and in vLLM
  (vllm/model_executor/layers/utils.py, apply_penalties). TensorRT-LLM's rule is the default; with its
  `prompt_ignore_length` set to the prompt's length it equals OpenAI's.
* TensorRT-LLM divides by the temperature before the penalties, vLLM and transformers after them, because OpenAI defines
  both on logits. This code applies the temperature last too. The order only matters for sampled text at temperatures
  other than 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

LARGEST = 1e4  # the largest penalty or bias; larger values would overflow float32 logits


@dataclass(frozen=True)
class LogitEdits:
    """Changes of the target's logits, applied in this order; the defaults change nothing.

    `bias` is added to the logits of its ids. Logits of ids that occur in prompt or output are divided by
    `repetition_penalty` if positive and multiplied by it if negative. `presence_penalty` is subtracted once from the
    logits of ids that occur after the first `prompt_ignore_len` tokens of the prompt, `frequency_penalty` once for each
    occurrence. Ids are forbidden if they would complete one of `bad_words`, end the text before `min_tokens` new
    tokens, or repeat an n-gram of `no_repeat_ngram` tokens of prompt and output (0 disables this). The first new token
    may not be one of `begin_suppressed`. Stop texts are ignored before `min_tokens`.
    """

    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    prompt_ignore_len: int = 0
    min_tokens: int = 0
    bad_words: tuple[tuple[int, ...], ...] = ()
    bias: Mapping[int, float] = field(default_factory=dict)
    no_repeat_ngram: int = 0
    begin_suppressed: tuple[int, ...] = ()

    @property
    def has_penalties(self) -> bool:
        """Return whether a penalty is set, so that earlier tokens change the logits."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)


NO_EDITS = LogitEdits()


def find_edit_errors(edits: LogitEdits, vocab_size: int) -> dict[str, bool]:
    """Return the possible errors of a request's edits as {message: whether it applies}."""
    ids = {*edits.bias, *edits.begin_suppressed, *(token for word in edits.bad_words for token in word)}
    return {
        f"repetition_penalty is {edits.repetition_penalty}, expected more than 0 and at most {LARGEST:g}": (
            not 1 / LARGEST <= edits.repetition_penalty <= LARGEST
        ),
        f"presence_penalty is {edits.presence_penalty}, expected -{LARGEST:g} to {LARGEST:g}": (
            not _is_small(edits.presence_penalty)
        ),
        f"frequency_penalty is {edits.frequency_penalty}, expected -{LARGEST:g} to {LARGEST:g}": (
            not _is_small(edits.frequency_penalty)
        ),
        f"prompt_ignore_length is {edits.prompt_ignore_len}, expected 0 or more": edits.prompt_ignore_len < 0,
        f"min_tokens is {edits.min_tokens}, expected 0 or more": edits.min_tokens < 0,
        f"no_repeat_ngram_size is {edits.no_repeat_ngram}, expected 0 or more": edits.no_repeat_ngram < 0,
        "a bad word is empty": any(not word for word in edits.bad_words),
        f"a bad word or a bias has a token id outside 0..{vocab_size - 1}": (
            any(not 0 <= token < vocab_size for token in ids)
        ),
        f"a bias is not within -{LARGEST:g} and {LARGEST:g}": not all(map(_is_small, edits.bias.values())),
    }


def _is_small(value: float) -> bool:
    return math.isfinite(value) and abs(value) <= LARGEST
