# SPDX-License-Identifier: Apache-2.0
"""Grammars of constrained requests: compilation with llguidance, and the state of one text in its grammar.

Guides are untrusted: `grammar_compiler` tries them in a child process before they are compiled here. The library bounds
the work of each step; `CpuBudget` bounds the sum over a text.

llguidance (guidance-ai/llguidance) is imported when the first constrained request arrives.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.core.errors import TrtspecError
from trtspec.engine.generation.request import Constraint

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

MAX_LEXER_STATES = 50_000  # of 1 to 2 kB each; the library's default is 250,000
ANY_JSON = "{}"
# Between the tokens of JSON: a model that is unsure would otherwise continue with white space until max_tokens.
WHITESPACE = r" |\n[ \t]{0,20}"

Bits = npt.NDArray[np.int32]


class CpuBudget:
    """The processor time that the grammar of one text may take, so that it does not hold up the batch.

    A mask takes 0.01 to 1 ms. `START_S` is for the first masks of a grammar, which are the slow ones.
    """

    START_S = 0.5
    MASK_S = 0.002

    def __init__(self) -> None:
        self._left_s = self.START_S
        self.message = f"its masks take more than {self.MASK_S * 1000:g} ms of processor time on average"

    @property
    def is_exceeded(self) -> bool:
        return self._left_s < 0

    def spend(self, seconds: float, masks: int) -> None:
        """Record the time of some work and the number of masks that it computed."""
        self._left_s = min(self.START_S, self._left_s + masks * self.MASK_S - seconds)


class GrammarMatcher:
    """The state of one text in its grammar.

    Methods do not raise: after a failure of the library or an exceeded limit, `error` is set and nothing is allowed.
    """

    def __init__(self, matcher: LLMatcher, end_ids: Iterable[int], own_ends: Sequence[int], vocab_size: int) -> None:
        self._matcher = matcher
        self._own_ends = own_ends
        self._ends = [token for token in end_ids if 0 <= token < vocab_size]
        self._budget = CpuBudget()
        self.error: str | None = None

    @property
    def is_complete(self) -> bool:
        """Return whether the text satisfies the grammar and cannot continue."""
        return self.error is None and self._matcher.is_stopped()

    def forced(self) -> list[int]:
        """Return the tokens of the only possible continuation, as the tokenizer encodes it; usually none."""
        if self.error or self.is_complete:
            return []
        begun = time.thread_time()
        tokens = [token for token in self._matcher.compute_ff_tokens() if token not in self._own_ends]
        self._spend(begun)
        return tokens

    def push(self, token: int) -> bool:
        """Append a token if it is allowed and no end id; return whether it was appended."""
        if self.error or token in self._ends or token in self._own_ends or self.is_complete:
            return False
        begun = time.thread_time()
        is_appended: bool = self._matcher.try_consume_tokens([token]) == 1
        self._spend(begun)
        return is_appended

    def pop(self, count: int) -> None:
        """Remove the last tokens."""
        if count and self.error is None and not self._matcher.rollback(count):
            self._fail()

    def fill(self, bits: Bits) -> None:
        """Set the bit of each token that may come next in bits [words of 32 tokens]."""
        bits.fill(0)
        begun = time.thread_time()
        if self.error is None and not self.is_complete:
            self._matcher.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
            if self._matcher.is_error():
                self._fail()
        self._spend(begun, masks=1)
        accepts = self.error is None and self._matcher.is_accepting()
        for tokens, is_allowed in ((self._own_ends, False), (self._ends, accepts)):
            for token in tokens:
                _set_bit(bits, token, is_allowed)

    def advance(self, tokens: Sequence[int]) -> int:
        """Append tokens of the text; return how many were appended, all unless the text became complete before."""
        for count, token in enumerate(tokens):
            if self.is_complete:
                return count
            if not self.push(token):
                self._fail(f"token {token} does not match the grammar")
                return count
        return len(tokens)

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """Turn an exception, or a panic of the library, into `error`."""
        try:
            yield
        except BaseException as failure:  # a panic is no Exception, and must not end the engine's thread
            self._fail(f"{type(failure).__name__}: {failure}")

    def _spend(self, begun: float, masks: int = 0) -> None:
        """Count the processor time of this thread since `begun`; exceeding the budget is a failure."""
        self._budget.spend(time.thread_time() - begun, masks)
        if self._budget.is_exceeded:
            self._fail(self._budget.message)

    def _fail(self, message: str = "") -> None:
        reason = message or self._matcher.get_error() or "the state cannot be restored"
        self.error = self.error or f"the grammar failed: {reason.splitlines()[0][:300]}"


def _set_bit(bits: Bits, token: int, value: bool) -> None:
    word, mask = token // 32, np.uint32(1 << token % 32)
    unsigned = bits.view(np.uint32)
    unsigned[word] = unsigned[word] | mask if value else unsigned[word] & ~mask


def load_library_tokenizer(tokenizer: Tokenizer, vocab_size: int) -> LLTokenizer:
    """Return llguidance's form of a tokenizer; raise TrtspecError if it does not support the tokenizer."""
    from llguidance import LLTokenizer

    ends = [token for token in tokenizer.end_ids if token < vocab_size]
    try:
        return LLTokenizer(tokenizer.as_json(), n_vocab=vocab_size, eos_token=ends or None)
    except ValueError as error:
        raise TrtspecError(f"structured output does not support this tokenizer: {error}") from None


def compile_grammar(tokenizer: LLTokenizer, constraint: Constraint) -> LLMatcher:
    """Compile a constraint in this process; raise TrtspecError if it is invalid or exceeds the library's limits."""
    from llguidance import LLMatcher, LLParserLimits, grammar_from

    kind, guide = constraint.guide_type, constraint.guide
    try:
        if kind in ("json", "json_schema"):
            schema = guide if kind == "json_schema" else ANY_JSON
            grammar = LLMatcher.grammar_from_json_schema(schema, {"whitespace_pattern": WHITESPACE})
        else:
            grammar = grammar_from("regex" if kind == "regex" else "ebnf", guide)
    except ValueError as error:
        raise TrtspecError(first_line(str(error))) from None
    limits = LLParserLimits(max_lexer_states=MAX_LEXER_STATES, verbose_errors=False)
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
    if matcher.is_error():
        raise TrtspecError(first_line(matcher.get_error()))
    return matcher


def first_line(message: str) -> str:
    """Return the first line of the library's message, in at most 300 characters."""
    return next(iter(message.strip().splitlines()), "invalid")[:300]
