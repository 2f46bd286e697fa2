# SPDX-License-Identifier: Apache-2.0
"""Requests and results as plain values without torch, which any engine can serve, and the validation of requests.

A request may change the target's logits before sampling by penalties, biases and forbidden tokens. TensorRT-LLM, vLLM
and transformers define them differently. trtspec's rules are:

* `repetition_penalty` counts prompt and output, as in all three.
* `presence_penalty` and `frequency_penalty` count the prompt too in TensorRT-LLM
  (cpp/tensorrt_llm/kernels/penaltyKernels.cu@249d93d5), but only the output in OpenAI's definition and in vLLM
  (vllm/model_executor/layers/utils.py, apply_penalties). TensorRT-LLM's rule is the default; with its
  `prompt_ignore_length` set to the prompt's length it equals OpenAI's.
* TensorRT-LLM divides by the temperature before the penalties, vLLM and transformers after them, because OpenAI defines
  both on logits. This code applies the temperature last too. The order only matters for sampled text at temperatures
  other than 1.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from itertools import chain, zip_longest
from typing import TYPE_CHECKING, Any

from trtspec.core.errors import TrtspecError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    Floats = npt.NDArray[np.float32]

MOST_LOG_PROBS = 20  # OpenAI's limit
LARGEST = 1e4  # the largest penalty or bias; larger values would overflow float32 logits


@dataclass(frozen=True)
class LogitEdits:
    """Changes of the target's logits, applied in the order of this description; the defaults change nothing.

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
    def token_ids(self) -> set[int]:
        return {*self.bias, *self.begin_suppressed, *chain(*self.bad_words)}

    @property
    def has_penalties(self) -> bool:
        """Return whether a penalty is set, so that earlier tokens change the logits."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)


NO_EDITS = LogitEdits()


GUIDE_TYPES = ("json", "json_schema", "regex", "ebnf_grammar")
MAX_GUIDE_BYTES = 128 << 10


@dataclass(frozen=True)
class Constraint:
    """The grammar of an output, by the names of NVIDIA's Triton models (guided_decoding_guide_type and _guide).

    `guide_type` is one of GUIDE_TYPES. "json" is any JSON value and needs no `guide`; for the others it is a JSON
    schema, a regular expression of the whole output, or a grammar in Lark's or llama.cpp's (GBNF) notation.
    """

    guide_type: str
    guide: str = ""


@dataclass(frozen=True)
class TokenLimits:
    """Maximum tokens of a request: prompt plus output, and the prompt alone (None for no limit)."""

    max_seq_len: int
    max_input_len: int | None = None


@dataclass(frozen=True)
class SamplingOptions:
    """Sampling options; temperature 0 or top_k 1 is greedy decoding, top_k 0 and top_p 1 keep all tokens.

    A request reads its random numbers from one stream that depends only on `seed` (see `RunningRequest.uniforms`). If
    several requests generate one text, each needs a different seed, and drafting needs a different seed than
    verification; otherwise the output does not follow the target's distribution. Seeds are hashed, so adjacent seeds
    give independent streams. `at` derives such seeds.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0 or self.top_k == 1

    def at(self, position: int, role: str) -> SamplingOptions:
        """Return these options with a seed for one call of one model, `position` tokens into the output."""
        digest = hashlib.blake2b(f"{self.seed} {position} {role}".encode(), digest_size=8).digest()
        return replace(self, seed=int.from_bytes(digest, "little"))


@dataclass(frozen=True)
class EngineRequest:
    """A generation request.

    Generation ends after `max_new_tokens`, before one of `end_ids`, or with the token that completes a `stop` text.
    `draft_len` lowers the engine's draft length for this request; 0 disables drafting. `options` lower sizes of the
    engine's method, if its drafter supports that.

    `draft_ids` is an external draft of the first new tokens, truncated to at most `max_new_tokens` - 1. It is verified
    together with the prompt, independent of the engine's method. The request then ends with the accepted tokens and one
    more, as in TensorRT-LLM's executor; its finish reason is "length" unless the text ended. `draft_logits`
    [len(draft_ids), vocab] mean that each token was sampled from softmax(draft_logits); temperature, top_k and top_p
    apply to the target only. With them more of the draft is accepted, and the output has the target's distribution.
    Without them a token is accepted only if the target samples the same one.

    `edits` change the target's logits before sampling; the text equals the target's text with the same edits.
    A `constraint` forbids every token that its grammar does not allow, and end ids where the grammar does not accept
    the text; it takes precedence over `edits`. A text that cannot continue ends with the reason "end_id".
    `return_logits` requests the target's unedited logits of every new token, `return_log_probs` the log probability of
    every new token and of the `num_top_log_probs` most probable tokens (see `Scores`).
    """

    prompt_ids: tuple[int, ...]
    max_new_tokens: int
    sampling: SamplingOptions = field(default_factory=SamplingOptions)
    end_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    draft_len: int | None = None
    options: Mapping[str, int] = field(default_factory=dict)
    draft_ids: tuple[int, ...] = ()
    draft_logits: Floats | None = field(default=None, compare=False)
    return_logits: bool = False
    edits: LogitEdits = NO_EDITS
    constraint: Constraint | None = None
    return_log_probs: bool = False
    num_top_log_probs: int = 0

    @property
    def scored(self) -> bool:
        return self.return_logits or self.return_log_probs


@dataclass(frozen=True, eq=False)
class Scores:
    """Logits and log probabilities of n tokens, one row each; fields that the request did not ask for are None.

    `logits` [n, vocab] are the model's unprocessed logits. `log_probs` [n] are the log probabilities of the tokens by
    the softmax of these logits, as in OpenAI's API and vLLM's `raw_logprobs`: without temperature, top_k, top_p and
    penalties. `top_log_probs` [n, k] are the k highest log probabilities, sorted, of the tokens `top_ids`.
    """

    logits: Floats | None = None
    log_probs: Floats | None = None
    top_log_probs: Floats | None = None
    top_ids: npt.NDArray[np.int32] | None = None

    def part(self, start: int, end: int | None = None) -> Scores:
        return Scores(*(None if rows is None else rows[start:end] for rows in self._rows()))

    @classmethod
    def joined(cls, parts: Iterable[Scores]) -> Scores:
        """Concatenate the rows of several scores, which must have the same fields."""
        import numpy as np  # imported late, because commands that only read recipes import this module

        columns = zip(*(part._rows() for part in parts), strict=True)
        return cls(*(None if column[0] is None else np.concatenate(column) for column in columns))

    def _rows(self) -> list[Any]:
        return [getattr(self, each.name) for each in fields(self)]


@dataclass(frozen=True)
class Stats:
    """Token and step counts of a request.

    `steps` counts the target's decode steps; a prefill that verified an external draft counts as one. `drafted` counts
    every verified token, including all nodes of a tree. `accepted_by_position` [deepest] counts the accepted tokens at
    each draft position (the depth in a tree), starting with the first; the sum is `accepted`. It is empty if the engine
    does not report positions. `draft_steps` counts the steps that verified a draft.
    """

    prompt_tokens: int = 0
    new_tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    steps: int = 0
    accepted_by_position: tuple[int, ...] = ()
    draft_steps: int = 0

    def __add__(self, other: Stats) -> Stats:
        positions = zip_longest(self.accepted_by_position, other.accepted_by_position, fillvalue=0)
        return Stats(
            self.prompt_tokens + other.prompt_tokens,
            self.new_tokens + other.new_tokens,
            self.drafted + other.drafted,
            self.accepted + other.accepted,
            self.steps + other.steps,
            tuple(one + two for one, two in positions),
            self.draft_steps + other.draft_steps,
        )

    @property
    def acceptance_rate(self) -> float:
        """Return accepted / drafted tokens; 0 if nothing was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def mean_accepted_len(self) -> float:
        """Return the mean tokens per decode step: accepted draft tokens plus the target's token; 1 without drafts."""
        return 1.0 + self.accepted / self.steps if self.steps else 1.0


def add_accepted(by_position: list[int], accepted: int) -> None:
    """Count a step that accepted the first `accepted` draft positions."""
    by_position += [0] * (accepted - len(by_position))
    for position in range(accepted):
        by_position[position] += 1


@dataclass(frozen=True)
class Update:
    """Progress of a request: the token ids since the last update, and the reason if it has finished.

    `finish_reason` is None while the request runs, then "length", "end_id", "stop", "cancelled", "error" (with `error`)
    or "refused" (with `error` and `refusal`, which `submit` would have raised had it waited). `scores` of the new ids
    are set if the request asked for scores and has run. `queue_s` is the waiting time in seconds until the engine
    admitted the request. It is None before admission or if the engine does not report it.
    """

    new_ids: tuple[int, ...]
    finish_reason: str | None
    stats: Stats
    error: str | None = None
    scores: Scores | None = field(default=None, compare=False)
    queue_s: float | None = field(default=None, compare=False)
    refusal: TrtspecError | None = field(default=None, compare=False)


@dataclass(frozen=True)
class EngineResult:
    """Result of a finished request, with the `scores` of its ids if it asked for any."""

    ids: tuple[int, ...]
    finish_reason: str
    stats: Stats
    scores: Scores | None = field(default=None, compare=False)


def check_request(request: EngineRequest, limits: TokenLimits, vocab_size: int, has_tokenizer: bool) -> None:
    """Raise TrtspecError with the invalid value if the engine cannot serve a request."""
    parts = (
        _text_errors(request, limits, vocab_size, has_tokenizer),
        _sampling_errors(request.sampling),
        _draft_errors(request, vocab_size),
        _edit_errors(request.edits, vocab_size),
        _constraint_errors(request.constraint, has_tokenizer),
    )
    for error in chain(*parts):
        raise TrtspecError(error)


def _text_errors(request: EngineRequest, limits: TokenLimits, vocab_size: int, has_tokenizer: bool) -> Iterator[str]:
    prompt_len, most = len(request.prompt_ids), limits.max_input_len
    total = prompt_len + request.max_new_tokens
    if not prompt_len:
        yield "the prompt is empty"
    if request.max_new_tokens < 1:
        yield f"max_tokens is {request.max_new_tokens}, expected at least 1"
    if _is_outside(request.prompt_ids, vocab_size):
        yield f"the prompt has a token id outside 0..{vocab_size - 1}"
    if most is not None and prompt_len > most:
        yield f"the prompt has {prompt_len} tokens, expected at most {most} (engine.max_input_len)"
    if total > limits.max_seq_len:
        fitting = f"at most {limits.max_seq_len} fit (engine.max_seq_len)"
        yield f"prompt and max_tokens are {total} tokens together, {fitting}"
    if not 0 <= request.num_top_log_probs <= MOST_LOG_PROBS:
        yield f"num_top_logprobs is {request.num_top_log_probs}, expected 0 to {MOST_LOG_PROBS}"
    if not all(request.stop):
        yield "a stop text is empty"
    if request.stop and not has_tokenizer:
        yield "stop texts need the engine to have a tokenizer"


def _sampling_errors(sampling: SamplingOptions) -> Iterator[str]:
    if not math.isfinite(sampling.temperature) or sampling.temperature < 0:
        yield f"temperature is {sampling.temperature}, expected 0 or more"
    if sampling.top_k < 0:
        yield f"top_k is {sampling.top_k}, expected 0 (all) or more"
    if not 0 < sampling.top_p <= 1:
        yield f"top_p is {sampling.top_p}, expected more than 0 and at most 1"
    if not 0 <= sampling.seed < 1 << 64:
        yield f"seed is {sampling.seed}, expected 0 to 2^64 - 1"


def _draft_errors(request: EngineRequest, vocab_size: int) -> Iterator[str]:
    ids, logits = request.draft_ids, request.draft_logits
    if (request.draft_len or 0) < 0:
        yield f"the draft length is {request.draft_len}, expected 0 or more"
    if _is_outside(ids, vocab_size):
        yield f"the draft has a token id outside 0..{vocab_size - 1}"
    if logits is None:
        return
    if logits.shape != (len(ids), vocab_size):
        shape = " x ".join(map(str, logits.shape))
        yield f"draft logits are {shape}, expected {len(ids)} x {vocab_size}: tokens and vocabulary"
    # the maximum of a row with NaN is NaN; a row of only -inf is not a valid distribution either
    elif not all(map(math.isfinite, logits.max(-1))):
        yield "a row of draft logits has NaN, infinity or no finite value"


def _edit_errors(edits: LogitEdits, vocab_size: int) -> Iterator[str]:
    if not 1 / LARGEST <= edits.repetition_penalty <= LARGEST:
        yield f"repetition_penalty is {edits.repetition_penalty}, expected more than 0 and at most {LARGEST:g}"
    for name, penalty in (("presence", edits.presence_penalty), ("frequency", edits.frequency_penalty)):
        if not abs(penalty) <= LARGEST:
            yield f"{name}_penalty is {penalty}, expected -{LARGEST:g} to {LARGEST:g}"
    counts = {
        "prompt_ignore_length": edits.prompt_ignore_len,
        "min_tokens": edits.min_tokens,
        "no_repeat_ngram_size": edits.no_repeat_ngram,
    }
    for name, count in counts.items():
        if count < 0:
            yield f"{name} is {count}, expected 0 or more"
    if not all(edits.bad_words):
        yield "a bad word is empty"
    if _is_outside(edits.token_ids, vocab_size):
        yield f"a bad word or a bias has a token id outside 0..{vocab_size - 1}"
    if not all(abs(bias) <= LARGEST for bias in edits.bias.values()):
        yield f"a bias is not within -{LARGEST:g} and {LARGEST:g}"


def _constraint_errors(constraint: Constraint | None, has_tokenizer: bool) -> Iterator[str]:
    if constraint is None:
        return
    kind, size = constraint.guide_type, len(constraint.guide.encode(errors="surrogatepass"))
    if not has_tokenizer:
        yield "structured output needs the engine to have a tokenizer"
    if kind not in GUIDE_TYPES:
        yield f"the guide type is {kind[:64]!r}, expected one of {', '.join(GUIDE_TYPES)}"
    if size > MAX_GUIDE_BYTES:
        yield f"the guide has {size:,} bytes, expected at most {MAX_GUIDE_BYTES:,}"
    if kind != "json" and not constraint.guide:
        yield f"the {kind} guide is empty"


def _is_outside(ids: Iterable[int], vocab_size: int) -> bool:
    return any(not 0 <= token < vocab_size for token in ids)
