# SPDX-License-Identifier: Apache-2.0
"""Conversion of request tensors to prompts and options, and of token ids, scores and counts to response tensors.

A text that is too long for a prompt is rejected before it is tokenized. `prompt_ignore_length` is from TensorRT-LLM
1.2; `num_top_logprobs`, `top_logprobs` and `top_logprob_ids` are extensions of trtspec.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import numpy as np
import numpy.typing as npt

from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.core.errors import TrtspecError
from trtspec.engine.generation.request import NO_EDITS, Constraint, LogitEdits, Scores, Stats
from trtspec.engine.generation.text import TextPieces
from trtspec.serving.triton.nvidia_compat import GUIDES
from trtspec.serving.triton.python_models.fields import json_preview
from trtspec.serving.triton.python_models.tensors import (
    NO_ID,
    Array,
    RequestTensors,
    check_end_id,
    check_ids,
    checked_length,
    decode_token_lists,
    request_end_ids,
)


def stop_sequences(pieces: TextPieces, stops: Sequence[str]) -> list[list[int]]:
    """Return the token ids of each stop string that has a token sequence, for the engine to stop at."""
    words = []
    for stop in stops:
        with suppress(TrtspecError):
            words.append(pieces.encode(stop))
    return words


class TextReader:
    """Tokenizes the prompts and words of requests; thread-safe."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        max_tokens: int,
        *,
        stops_at_all: bool = False,
        vocab_size: int = 0,
        is_nvidia: bool = False,
    ) -> None:
        """Set the tokenizer and the model's limits.

        Args:
            max_tokens: maximum length of a prompt; 0 for no limit. A text that must have more tokens is not tokenized,
                because that takes seconds.
            stops_at_all: true if end ids after the first must be stop words.
            vocab_size: number of logits including padding; 0 for the size of the tokenizer's vocabulary.
            is_nvidia: true if only the eos token ends a completion, and the pad token is used for padding.
        """
        self._is_nvidia = is_nvidia
        self._tokenizer, self._vocab_size = tokenizer, vocab_size or tokenizer.vocab_size
        self._max_tokens = max_tokens
        self._max_bytes = max_tokens * max(len(token.encode()) for token in tokenizer.vocabulary)
        self._stops_at_all = stops_at_all
        self.pieces = TextPieces(tokenizer)

    def prompt(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[int]:
        """Return the token ids of the concatenated `texts`; raises TrtspecError if empty or certainly too long."""
        text = "".join(texts)
        if 0 < self._max_bytes < len(text):  # a text has at least as many bytes as characters
            raise TrtspecError(
                f"text_input has {len(text):,} characters; the limit of {self._max_tokens} tokens is at most "
                f"{self._max_bytes:,} bytes"
            )
        if ids := self._tokenizer.encode(text, add_special_tokens):
            return ids
        raise TrtspecError("text_input is empty")

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text; raises TrtspecError for one without a token sequence."""
        return [self.pieces.encode(text) for text in texts]

    def bias(self, texts: Sequence[str], weights: Sequence[float]) -> npt.NDArray[np.float32] | None:
        """Return the logit bias `[vocab_size]` of the tokens of weighted words, or None without words.

        TensorRT-LLM rejects a bias of another length (NVIDIA/TensorRT-LLM:cpp/tensorrt_llm/batch_manager/
        createNewDecoderRequests.cpp@b35ac1b6). Raises TrtspecError if the numbers of words and weights differ, or if a
        word's token lacks a logit.
        """
        if len(texts) != len(weights):
            raise TrtspecError(
                f"embedding_bias_words has {len(texts)} entries, but embedding_bias_weights has {len(weights)}"
            )
        if not texts:
            return None
        bias = np.zeros(self._vocab_size, np.float32)
        for text, ids, weight in zip(texts, self.encode_all(texts), weights, strict=True):
            if max(ids, default=0) >= self._vocab_size:
                raise TrtspecError(
                    f"embedding_bias_words has {json_preview(text)}, but the model lacks a logit for one of its tokens"
                )
            np.add.at(bias, ids, weight)
        return bias

    def pad_id(self, given: int | None, end_id: int) -> int:
        """Return the padding id: `given`, else with NVIDIA's defaults the pad token, else the end id."""
        own = self._tokenizer.named("pad_token") if self._is_nvidia else ()
        return next(iter(own), max(end_id, 0)) if given is None else given

    def ends(self, given: int | None) -> tuple[int, list[list[int]]]:
        """Return the end id and, if `stops_at_all`, the further end ids as stop words.

        `given` is the request's end id, or None.
        """
        tokenizer = self._tokenizer
        own = tokenizer.named("eos_token") if self._is_nvidia else tokenizer.end_ids
        first, *more = own or (NO_ID,) if given is None else (check_end_id(given),)
        return first, [[token] for token in more] if self._stops_at_all else []


UNKNOWN_STEPS = -1  # of num_draft_steps, if an engine does not report drafts


def read_edits(inputs: RequestTensors, defaults: LogitEdits = NO_EDITS) -> LogitEdits:
    """Return the logit edits of a request.

    `defaults` has the values of an omitted repetition_penalty or min_tokens. Its bad words and biases, and its settings
    without a tensor, apply in addition to the request's.
    """
    words, bias = inputs.array("bad_words_list"), inputs.array("embedding_bias")
    return LogitEdits(
        repetition_penalty=inputs.scalar("repetition_penalty", defaults.repetition_penalty),
        presence_penalty=inputs.scalar("presence_penalty", 0.0),
        frequency_penalty=inputs.scalar("frequency_penalty", 0.0),
        prompt_ignore_len=inputs.scalar("prompt_ignore_length", 0),
        min_tokens=inputs.scalar("min_tokens", defaults.min_tokens),
        bad_words=(*defaults.bad_words, *(() if words is None else map(tuple, decode_token_lists(words)))),
        bias={
            **defaults.bias,
            **({} if bias is None else {int(token): float(bias[token]) for token in np.flatnonzero(bias)}),
        },
        no_repeat_ngram=defaults.no_repeat_ngram,
        begin_suppressed=defaults.begin_suppressed,
    )


def read_constraint(inputs: RequestTensors) -> Constraint | None:
    """Return the grammar of a request's output, None without one; raise TrtspecError for a guide without a type."""
    kinds, guides = (inputs.texts(name) for name in GUIDES)
    if guides and not kinds:
        raise TrtspecError(f"{GUIDES[1]} requires {GUIDES[0]}")
    return Constraint(kinds[0], guides[0] if guides else "") if kinds else None


def read_score_options(inputs: RequestTensors) -> dict[str, Any]:
    """Return the scores that a request asks for, as keyword arguments of `EngineRequest`."""
    top = inputs.scalar("num_top_logprobs", 0)
    return {
        "return_logits": inputs.scalar("return_generation_logits", False),
        "return_log_probs": inputs.scalar("return_log_probs", False) or top != 0,
        "num_top_log_probs": top,
    }


def score_tensors(scores: Scores, cum_log_prob: float) -> list[tuple[str, Array]]:
    """Return the output tensors with the scores of new tokens.

    `cum_log_prob` is the sum of the log probabilities of the whole completion so far.
    """
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


def count_tensors(counts: Stats) -> list[tuple[str, Array]]:
    """Return the output tensors with the token and draft counts of a completion."""
    return [
        ("acceptance_rate", np.array([[counts.acceptance_rate]], np.float32)),
        ("total_accepted_draft_tokens", np.array([[counts.accepted]], np.int32)),
        ("total_draft_tokens", np.array([[counts.drafted]], np.int32)),
        ("num_draft_steps", np.array([[counts.draft_steps]], np.int32)),
        ("accepted_by_position", np.array([counts.accepted_by_position or (0,)], np.int32)),
        ("num_input_tokens", np.array([[counts.prompt_tokens]], np.int32)),
        ("num_output_tokens", np.array([[counts.new_tokens]], np.int32)),
    ]


class TokenReader:
    """Reads prompts and stop conditions from requests with token ids.

    With `is_nvidia`, only the request's own end id ends a text.
    """

    def __init__(self, tokenizer: Tokenizer, *, is_nvidia: bool = False) -> None:
        self._tokenizer, self._is_nvidia = tokenizer, is_nvidia
        self._pieces = TextPieces(tokenizer)

    def read(self, inputs: RequestTensors) -> dict[str, Any]:
        """Return the prompt and its stop conditions, as keyword arguments of `EngineRequest`."""
        ids = inputs.required("input_ids").tolist()
        tensor = inputs.array("stop_words_list")
        words = [] if tensor is None else decode_token_lists(tensor)
        # a stop word of a single special token lacks a text that could be searched for
        ends = [word for word in words if len(word) == 1 and word[0] in self._tokenizer.silent]
        return {
            "prompt_ids": tuple(ids[: checked_length("input_lengths", inputs.scalar("input_lengths"), ids)]),
            "max_new_tokens": inputs.scalar("request_output_len"),
            "end_ids": (
                *request_end_ids(self._tokenizer, inputs.scalar("end_id"), is_nvidia=self._is_nvidia),
                *(token for (token,) in ends),
            ),
            "stop": tuple(
                self._pieces.decode(check_ids("stop_words_list", word)) for word in words if word not in ends
            ),
        }


class UnsentTokens:
    """The generated token ids of a request that are not sent yet, and their scores if requested.

    The prompt is included if `exclude_input_in_output` is false, and by default for requests without streaming, as in
    NVIDIA's `tensorrt_llm`.
    """

    def __init__(self, inputs: RequestTensors, prompt_ids: Sequence[int], *, streaming: bool) -> None:
        self._pad_id = inputs.scalar("pad_id", 0)
        self._ids = [] if inputs.scalar("exclude_input_in_output", streaming) else list(prompt_ids)
        self._scores: list[Scores] = []
        self._cum_log_prob = 0.0
        self._continues = False

    def add(self, ids: Sequence[int], scores: Scores | None = None) -> None:
        self._ids += ids
        if scores is None:
            return
        self._scores.append(scores)
        if scores.log_probs is not None:
            self._cum_log_prob += float(scores.log_probs.sum(dtype=np.float64))

    def take(self, counts: Stats) -> list[tuple[str, Array]]:
        """Return the unsent ids and `counts` as the tensors of one response; without ids, one pad id of length 0."""
        ids, self._ids = self._ids, []
        scores, self._scores = self._scores, []
        continues, self._continues = self._continues, True
        return [
            ("output_ids", np.array([[ids or [self._pad_id]]], np.int32)),
            ("sequence_length", np.array([[len(ids)]], np.int32)),
            *(score_tensors(Scores.joined(scores), self._cum_log_prob) if scores else []),
            ("continuation", np.array([[continues]])),
            ("sequence_index", np.array([[0]], np.int32)),
            *count_tensors(counts),
        ]
