# SPDX-License-Identifier: Apache-2.0
"""Speculative decoding across Triton models: one drafts tokens and another verifies them, or one works alone.

A target that drafts itself, or does not draft, gets a single call per completion. For a target that verifies drafts,
which is TensorRT-LLM's executor, this code relies on the following
(NVIDIA/TensorRT-LLM:cpp/tensorrt_llm/batch_manager/trtGptModelInflightBatching.cpp@00825c4e,
layers/externalDraftTokensLayer.cpp@1d263f15, kernels/speculativeDecoding/externalDraftTokensKernels.cu@2931b93f):

* A request with draft tokens verifies them in one step and ends after it, with the accepted tokens and one more. A
  target that continues up to the requested number of tokens works as well.
* Every request contains the whole text. The KV cache is reused, which draft tokens require, so only new tokens are
  computed.
* `draft_logits` define the draft distribution, softmax(draft_logits); temperature, top_k and top_p apply only to the
  target's logits. A rejected token is replaced by one from the residual, so the text has exactly the target's
  distribution.
* Without `draft_logits`, a draft token must equal the token that the target samples; otherwise the target samples again
  from its whole distribution, so drafted tokens occur too often. Greedy output is exact, sampled output is not.
* An end token is not returned, so a text that ends after an accepted token looks like one that continues.

Therefore the draft of a sampled text always has logits: those that it was sampled from, or point-mass logits if it was
chosen deterministically. Drafts are sampled with temperature only, because the tokens that another program keeps for a
top_k or top_p cannot be reproduced exactly. Requests with drafts set no end token; `StopConditions` finds it in the
output.

Every request of a completion has its own seed, and its draft another one, because an engine starts a new stream of
random numbers for each request.

`ServerModel` converts calls to tensors and tensors to answers.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from trtspec.core.errors import TrtspecError
from trtspec.engine.generation.circuit_breaker import CircuitBreaker
from trtspec.engine.generation.request import SamplingOptions
from trtspec.engine.generation.suffixes import SuffixIndex
from trtspec.engine.generation.text import StopConditions
from trtspec.serving.triton.python_models.adaptive_draft_len import AdaptiveDraftLen, DraftLenChoice
from trtspec.serving.triton.python_models.grpc_client import (
    LONGEST_TEXT_S,
    ModelError,
    ReconnectingStream,
    infer_request,
    output_arrays,
)
from trtspec.serving.triton.python_models.tensors import NO_ID, Array, encode_token_lists

ALONE_TOKENS = 32  # tokens that the target generates alone before drafting is tried again
ZERO_PROBABILITY_LOGIT = -1e9  # logit of zero probability; not every interface passes infinities


class DraftFailed(TrtspecError):
    """Raised if a draft model fails or times out."""


@dataclass(frozen=True)
class TokenDraft:
    """Drafted tokens; `logits` `[tokens, vocab]` is their sampling distribution, None if they were not sampled."""

    ids: Sequence[int] = ()
    logits: Array | None = None


@dataclass(frozen=True)
class ModelCall:
    """One call of a model: to generate up to `new_tokens` tokens after `text`, or to verify `draft`.

    Attributes:
        wants_counts: true to get the model's own draft counts in the answers.
        streams: true if tokens may arrive one by one, which requires decoupled models.
        stop_words: sequences of token ids that end the text.
        lookahead: window, n-gram and verification set size of a lookahead model; empty for its defaults.
        passed: further input tensors `[1, ...]`, by name.
    """

    text: Sequence[int]
    new_tokens: int
    sampling: SamplingOptions
    end_id: int = NO_ID
    draft: TokenDraft = TokenDraft()
    wants_logits: bool = False
    wants_counts: bool = False
    streams: bool = False
    stop_words: Sequence[Sequence[int]] = ()
    lookahead: tuple[int, ...] = ()
    passed: Sequence[tuple[str, Array]] = ()


@dataclass(frozen=True)
class ModelAnswer:
    """The next tokens of a call and, if requested, their logits `[tokens, vocab]` and the model's draft counts."""

    ids: list[int]
    logits: Array | None = None
    drafted: int = 0
    accepted: int = 0


ModelFn = Callable[[ModelCall], Iterable[ModelAnswer]]


@dataclass(frozen=True)
class GenerationRequest:
    """A text to continue; `endings` are the conditions that end it.

    `call` is the target's call for the whole completion, used if `draft_len` is 0. Otherwise it is replaced by calls
    with drafts, which have neither its stop conditions nor its `lookahead` and `passed`.
    """

    call: ModelCall
    draft_len: int
    endings: StopConditions


@dataclass(frozen=True)
class DecodeStep:
    """The new tokens of one step, with their draft counts; the last step has the finish reason."""

    ids: list[int]
    drafted: int = 0
    accepted: int = 0
    finish_reason: str | None = None


class TokenDrafter(Protocol):
    """A drafter for one text; a draft must depend only on the text and on the drafter's own seed."""

    def propose(self, text: Sequence[int], position: int, at_most: int) -> TokenDraft | None:
        """Return a draft of at most `at_most` tokens after `text`, whose last `position` tokens are generated.

        Return None to let the target continue alone, possibly for several tokens in one call.
        """


class RemoteModelDrafter(TokenDrafter):
    """Drafts with a smaller model on the same server."""

    def __init__(
        self,
        model: ModelFn,
        sampling: SamplingOptions,
        *,
        draws: bool,
        stop_below: float = 0.0,
        fast_logits: bool = False,
    ) -> None:
        """Set the draft model and its options.

        Args:
            model: the draft model.
            sampling: sampling options of the text.
            draws: sample with the text's temperature, if it has one, instead of choosing the most probable token.
            stop_below: end the draft at the first position at which no token has this probability.
            fast_logits: the logits stay on the device, and the answer contains their location for the target; the draft
                is sampled from them unmodified, at temperature 1.
        """
        self._model = model
        self._draws = (draws or fast_logits) and not sampling.greedy
        temperature = 1.0 if fast_logits else sampling.temperature
        self._sampling = SamplingOptions(temperature if self._draws else 0.0, seed=sampling.seed)
        self._stop_below = stop_below

    def propose(self, text: Sequence[int], position: int, at_most: int) -> TokenDraft:
        sampling = self._sampling.at(position, "draft")
        call = ModelCall(text, at_most, sampling, wants_logits=self._draws or self._stop_below > 0.0)
        answers = list(self._model(call))
        ids = [token for answer in answers for token in answer.ids][:at_most]
        if not ids or not call.wants_logits:
            return TokenDraft(ids)
        logits = next((answer.logits for answer in answers if answer.logits is not None), None)
        if logits is None:
            raise TrtspecError("the draft model gave no logits", hint="build its engine to gather generation logits")
        if self._stop_below:
            ids = ids[: _sure_len(logits, self._stop_below)]
            logits = logits[: len(ids)]
        if not self._draws:
            return TokenDraft(ids)
        temperature = self._sampling.temperature
        return TokenDraft(ids, logits if temperature == 1.0 else logits / temperature)


class LookupDrafter(TokenDrafter):
    """Drafts the tokens that followed an earlier occurrence of the text's last tokens (prompt lookup)."""

    def __init__(self, index: SuffixIndex, min_match: int) -> None:
        self._index = index
        self._min_match = min_match

    def propose(self, text: Sequence[int], position: int, at_most: int) -> TokenDraft:
        index = self._index
        index.extend(text[len(index) :])
        return TokenDraft(index.continuation(at_most) if index.matched >= self._min_match else [])


class FallbackDrafter(TokenDrafter):
    """Wraps a drafter; falls back to target-only decoding when it fails or is slower."""

    def __init__(
        self,
        drafter: TokenDrafter,
        breaker: CircuitBreaker,
        lengths: AdaptiveDraftLen | None,
        on_fallback: Callable[[str, TrtspecError | None], None] = lambda reason, error: None,
        *,
        by_speed: bool = True,
    ) -> None:
        """Set the drafter and the conditions for using it.

        Args:
            drafter: raises TrtspecError if it cannot draft for this text, DraftFailed if it fails.
            breaker: circuit breaker of the draft model, shared by all texts.
            lengths: chooses the draft length; without it, the requested length is used.
            on_fallback: called with a reason and an error whenever the target continues alone although drafting was
                requested. Reasons are "refused" (by the draft model), "failed" and "open" (circuit breaker open, no
                error).
            by_speed: choose lengths by measured speed; otherwise follow only the schedule of `lengths`.
        """
        self._drafter, self._breaker, self._lengths, self._on_fallback = drafter, breaker, lengths, on_fallback
        self._by_speed = by_speed
        self._refused = False
        self._choice: DraftLenChoice | None = None
        self._position = 0

    def propose(self, text: Sequence[int], position: int, at_most: int) -> TokenDraft | None:
        if self._refused:
            return None
        if self._lengths and self._choice:
            self._lengths.note(self._choice, position - self._position)
        self._choice, self._position, draft_len = None, position, at_most
        if self._lengths and self._by_speed:
            self._choice = self._lengths.choose()
            draft_len = self._choice.draft_len
        elif self._lengths:
            draft_len = self._lengths.limit()
        if draft_len == 0:
            return None
        if not self._breaker.allows():
            self._fall_back("open")
            return None
        try:
            draft = self._drafter.propose(text, position, min(draft_len, at_most))
        except DraftFailed as error:
            self._breaker.failed()
            self._fall_back("failed", error)
            return None
        except TrtspecError as error:
            self._refused = True
            self._breaker.succeeded()
            self._fall_back("refused", error)
            return None
        self._breaker.succeeded()
        if draft_len > at_most:
            self._choice = None  # shorter than the choice, so the step is not a sample of that length
        return draft

    def _fall_back(self, reason: str, error: TrtspecError | None = None) -> None:
        self._choice = None
        self._on_fallback(reason, error)


def generate(
    job: GenerationRequest, target: ModelFn, drafter: TokenDrafter | None, vocab_size: int = 0
) -> Generator[DecodeStep, None, None]:
    """Yield the decoding steps of a text; the last one has the finish reason.

    Args:
        job: the text to continue.
        target: the target model.
        drafter: the drafter, or None if the job's `draft_len` is 0.
        vocab_size: size of the target's logits including padding, for point-mass logits; 0 for a target that verifies
            tokens without logits exactly.
    """
    output: list[int] = []
    while True:
        text, remaining = [*job.call.text, *output], job.call.new_tokens - len(output)
        at_most = min(job.draft_len, remaining - 1)
        draft = drafter.propose(text, len(output), at_most) if drafter and at_most > 0 else TokenDraft()
        call = _call(job, text, remaining, draft, vocab_size)
        given, drafts = 0, draft.ids if draft else ()
        for answer in target(call):
            if not answer.ids and not answer.drafted:
                continue
            drafted, accepted = answer.drafted, answer.accepted
            if drafts and not given:
                drafted, accepted = len(drafts), _accepted(drafts, answer.ids)
            given += len(answer.ids)
            kept, reason = job.endings.cut(output, answer.ids[: job.call.new_tokens - len(output)])
            output += kept
            if reason is None and len(output) == job.call.new_tokens:
                reason = "length"
            yield DecodeStep(kept, drafted, accepted, reason)
            if reason:
                return
        if given < (1 if drafts else call.new_tokens):
            yield DecodeStep([], finish_reason="end_id")
            return


def _call(
    job: GenerationRequest, text: Sequence[int], remaining: int, draft: TokenDraft | None, vocab_size: int
) -> ModelCall:
    """Return the target's next call, for tokens after `text`; at most `remaining` tokens are needed.

    The call requests all remaining tokens if nothing is drafted, and up to ALONE_TOKENS if `draft` is None. Otherwise
    it verifies the draft, or requests one token if the draft is empty.
    """
    whole = job.call
    if job.draft_len == 0:
        return replace(whole, text=text, new_tokens=remaining, wants_counts=True)
    sampling = whole.sampling.at(len(text) - len(whole.text), "target")
    if draft is None:
        piece = min(remaining, ALONE_TOKENS)
        return ModelCall(text, piece, sampling, whole.end_id, streams=whole.streams, stop_words=whole.stop_words)
    if not draft.ids:
        return ModelCall(text, 1, sampling, whole.end_id)
    if draft.logits is None and vocab_size and not sampling.greedy:
        draft = replace(draft, logits=_point_mass(draft.ids, vocab_size))
    return ModelCall(text, len(draft.ids) + 1, sampling, draft=draft)


def _point_mass(ids: Sequence[int], vocab_size: int) -> Array:
    logits = np.full((len(ids), vocab_size), ZERO_PROBABILITY_LOGIT, np.float32)
    logits[np.arange(len(ids)), np.asarray(ids)] = 0.0
    return logits


def _accepted(draft: Sequence[int], given: Sequence[int]) -> int:
    """Return the number of leading draft tokens in `given`; the replacement of a rejected token always differs."""
    same = takewhile(lambda pair: pair[0] == pair[1], zip(draft, given, strict=False))
    return sum(1 for _ in same)


def _sure_len(logits: Array, stop_below: float) -> int:
    """Return the number of leading positions at which some token has at least the probability `stop_below`.

    `logits` has the shape `[tokens, vocab]`. The criterion is the draft's distribution, not the sampled token, which
    would bias the text.
    """
    rows = logits.astype(np.float64)
    best = 1.0 / np.exp(rows - rows.max(-1, keepdims=True)).sum(-1)
    unsure = np.flatnonzero(best < stop_below)
    return int(unsure[0]) if len(unsure) else len(rows)


STUB = b"triton_python_backend_stub"
STOPPED = ("T", "t")
STATE, PARENT = 0, 1  # fields of /proc/PID/stat after the process name


def kill_stopped(model: str) -> list[int]:
    """Kill the stopped stub processes of a model and return their process ids.

    tritonserver aborts if it waits some seconds for a lock held by a stopped process. After the process has died, it
    only reports that the model is not healthy.
    """
    ended = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):
            command = (process / "cmdline").read_bytes()
            if STUB not in command or f"/{model}/".encode() not in command:
                continue
            fields = (process / "stat").read_text().rpartition(")")[2].split()
            if fields[STATE] in STOPPED and int(fields[PARENT]) == os.getppid():
                os.kill(int(process.name), signal.SIGKILL)
                ended.append(int(process.name))
    return ended


COUNTS = ("total_draft_tokens", "total_accepted_draft_tokens")
LOOKAHEAD_SIZES = ("lookahead_window_size", "lookahead_ngram_size", "lookahead_verification_set_size")


class ServerModel:
    """A model with the tensors of NVIDIA's `tensorrt_llm`; all calls of one completion share a gRPC stream."""

    def __init__(self, line: ReconnectingStream, name: str, timeout_s: float = LONGEST_TEXT_S) -> None:
        self._line = line
        self._name = name
        self._timeout_s = timeout_s

    def __call__(self, call: ModelCall) -> Iterator[ModelAnswer]:
        """Send a call and yield the model's answers; raises ModelError if the model fails or times out.

        A caller that stops early must close the stream.
        """
        counted = [0, 0]  # a model's counts are totals of a request; an answer has the differences
        try:
            for response in self._line.ask(self._request(call), self._timeout_s):
                outputs = output_arrays(response.infer_response)
                if not outputs:
                    continue
                length = int(outputs["sequence_length"].reshape(-1)[0])
                logits = outputs.get("generation_logits")
                before = counted
                counted = [
                    int(outputs[name].item()) if name in outputs else count
                    for name, count in zip(COUNTS, before, strict=True)
                ]
                yield ModelAnswer(
                    outputs["output_ids"][0, 0, :length].tolist(),
                    None if logits is None else logits[0, 0],
                    counted[0] - before[0],
                    counted[1] - before[1],
                )
        except ModelError as error:
            raise ModelError(error.message, error.status, where=self._name) from None

    def _request(self, call: ModelCall) -> Any:
        wanted = ["output_ids", "sequence_length"]
        wanted += ["generation_logits"] if call.wants_logits else []
        wanted += COUNTS if call.wants_counts else []
        return infer_request(self._name, tensors(call), wanted)


def tensors(call: ModelCall) -> list[tuple[str, Array]]:
    """Return the input tensors of a call, with a batch dimension of 1.

    All sampling tensors are included, because the executor's defaults differ from trtspec's.
    """
    sampling, greedy = call.sampling, call.sampling.greedy
    named = [
        ("input_ids", np.array([call.text], np.int32)),
        ("input_lengths", np.array([[len(call.text)]], np.int32)),
        ("request_output_len", np.array([[call.new_tokens]], np.int32)),
        ("end_id", np.array([[call.end_id]], np.int32)),
        ("exclude_input_in_output", np.array([[True]])),
        ("streaming", np.array([[call.streams]])),
        ("return_generation_logits", np.array([[call.wants_logits]])),
        ("return_perf_metrics", np.array([[call.wants_counts]])),
        *((name, np.array([[size]], np.int32)) for name, size in zip(LOOKAHEAD_SIZES, call.lookahead, strict=False)),
        ("temperature", np.array([[1.0 if greedy else sampling.temperature]], np.float32)),
        ("runtime_top_k", np.array([[1 if greedy else sampling.top_k]], np.int32)),
        ("runtime_top_p", np.array([[1.0 if greedy else sampling.top_p]], np.float32)),
        ("seed", np.array([[sampling.seed]], np.uint64)),
        *call.passed,
    ]
    if call.stop_words:
        named.append(("stop_words_list", encode_token_lists(call.stop_words)[None]))
    if call.draft.ids:
        named.append(("draft_input_ids", np.array([call.draft.ids], np.int32)))
        if call.draft.logits is not None:
            named.append(("draft_logits", call.draft.logits[None]))
    return named
