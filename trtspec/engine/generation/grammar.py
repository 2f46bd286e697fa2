# SPDX-License-Identifier: Apache-2.0
"""Grammars of constrained requests: compilation with llguidance, and the state of one text in its grammar.

A guide comes from a client, so it is first compiled in a child process with limits of memory and time
(`trtspec.core.sandbox`). The library's own limits are not sufficient: a schema of 1 kB can take a minute and gigabytes,
or overflow the stack (benchmarks/experiments/structured-output.md). Later steps are bounded by the library.

llguidance (guidance-ai/llguidance) is imported when the first constrained request arrives.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.core.errors import TrtspecError
from trtspec.core.sandbox import REFUSED, SandboxError, SandboxLimits, SandboxPool
from trtspec.engine.generation.request import Constraint

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

HINT = "pip install 'trtspec[structured]'"
TRIAL = "trtspec.engine.generation.grammar"
TRIAL_LIMITS = SandboxLimits(memory_bytes=1 << 30, cpu_s=3.0, wall_s=10.0, output_bytes=4096)
TRIAL_STACK_BYTES = 1 << 20  # an eighth of a usual stack: what the child survives does not overflow this process's
TRIAL_STEPS = 16
MAX_COMPILED = 32  # grammars that stay compiled
MAX_LEXER_STATES = 50_000  # of 1 to 2 kB each; the library's default is 250,000
ANY_JSON = "{}"
# Between the tokens of JSON: a model that is unsure would otherwise continue with white space until max_tokens.
WHITESPACE = r" |\n[ \t]{0,20}"

Bits = npt.NDArray[np.int32]


class GrammarCompiler:
    """Compiles constraints for one vocabulary; thread-safe. The most recently used grammars are cached."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        """`vocab_size` is the number of the model's logits; ids without a token are never allowed."""
        self._tokenizer, self._vocab_size = tokenizer, vocab_size
        self._compiled: OrderedDict[Constraint, LLMatcher] = OrderedDict()
        self._lock = threading.Lock()

    @cached_property
    def _library_tokenizer(self) -> LLTokenizer:
        return load_library_tokenizer(self._tokenizer, self._vocab_size)

    @cached_property
    def _children(self) -> SandboxPool:
        prepared = {"root": str(self._tokenizer.root.absolute()), "vocab_size": self._vocab_size}
        return SandboxPool(1, TRIAL_LIMITS, (f"{TRIAL}:prepare_trial", prepared))

    def matcher(self, constraint: Constraint, end_ids: Iterable[int]) -> GrammarMatcher:
        """Return the state of an empty text, which may end with one of `end_ids` where the grammar accepts it.

        Raises TrtspecError if llguidance is missing, or if the constraint is invalid or exceeds a limit.
        """
        if find_spec("llguidance") is None:
            raise TrtspecError("structured output needs llguidance, which is not installed", hint=HINT)
        with self._lock:
            compiled = self._compiled.get(constraint)
            if compiled is None:
                compiled = self._compile(constraint)
                if len(self._compiled) >= MAX_COMPILED:
                    self._compiled.popitem(last=False)
                self._compiled[constraint] = compiled
            self._compiled.move_to_end(constraint)
            own_ends = tuple(self._library_tokenizer.eos_tokens)
            return GrammarMatcher(compiled.deep_copy(), end_ids, own_ends, self._vocab_size)

    def _compile(self, constraint: Constraint) -> LLMatcher:
        what = f"the {constraint.guide_type} guide"
        try:
            self._children.ask(f"{TRIAL}:try_grammar", [constraint.guide_type, constraint.guide])
        except SandboxError as error:
            if error.cause == REFUSED:
                raise TrtspecError(f"{what} is not supported: {error.message}") from None
            raise TrtspecError(f"{what} cannot be compiled: {error.message}", hint="use a smaller one") from None
        return compile_grammar(self._library_tokenizer, constraint)

    def close(self) -> None:
        if "_children" in self.__dict__:
            self._children.close()


class GrammarMatcher:
    """The state of one text in its grammar.

    Methods do not raise: after a failure of the library or an exceeded limit, `error` is set and nothing is allowed.
    """

    def __init__(self, matcher: LLMatcher, end_ids: Iterable[int], own_ends: Sequence[int], vocab_size: int) -> None:
        self._matcher = matcher
        self._own_ends = own_ends
        self._ends = [token for token in end_ids if 0 <= token < vocab_size]
        self.error: str | None = None

    @property
    def is_complete(self) -> bool:
        """Return whether the text satisfies the grammar and cannot continue."""
        return self.error is None and self._matcher.is_stopped()

    def may_end(self, token: int) -> bool:
        """Return whether a token is an end id and the grammar accepts the text."""
        return token in self._ends and self.error is None and self._matcher.is_accepting()

    def forced(self) -> list[int]:
        """Return the tokens of the only possible continuation, as the tokenizer encodes it; usually none."""
        if self.error or self.is_complete:
            return []
        return [token for token in self._matcher.compute_ff_tokens() if token not in self._own_ends]

    def push(self, token: int) -> bool:
        """Append a token if it is allowed and no end id; return whether it was appended."""
        if self.error or token in self._ends or token in self._own_ends or self.is_complete:
            return False
        return self._matcher.try_consume_tokens([token]) == 1

    def pop(self, count: int) -> None:
        """Remove the last tokens."""
        if count and self.error is None and not self._matcher.rollback(count):
            self._fail()

    def fill(self, bits: Bits) -> None:
        """Set the bit of each token that may come next in bits [words of 32 tokens]."""
        bits.fill(0)
        if self.error is None and not self.is_complete:
            self._matcher.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
            if self._matcher.is_error():
                self._fail()
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
        raise TrtspecError(_first_line(str(error))) from None
    limits = LLParserLimits(max_lexer_states=MAX_LEXER_STATES, verbose_errors=False)
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=limits)
    if matcher.is_error():
        raise TrtspecError(_first_line(matcher.get_error()))
    return matcher


def _first_line(message: str) -> str:
    return next(iter(message.strip().splitlines()), "invalid")[:300]


# The code below runs in the child.

_trial_tokenizer: list[LLTokenizer] = []


def prepare_trial(argument: dict[str, Any], data: bytes) -> None:
    """Load the tokenizer of the child process."""
    tokenizer = Tokenizer(Path(argument["root"]), vetted=True)
    _trial_tokenizer[:] = [load_library_tokenizer(tokenizer, argument["vocab_size"])]


def try_grammar(argument: Sequence[str], data: bytes) -> None:
    """Compile a grammar and take some steps, in a thread with a small stack; raise TrtspecError if it fails."""
    failures: list[TrtspecError] = []

    def attempt() -> None:
        try:
            _try_steps(compile_grammar(_trial_tokenizer[0], Constraint(*argument)))
        except TrtspecError as error:
            failures.append(error)

    threading.stack_size(TRIAL_STACK_BYTES)
    thread = threading.Thread(target=attempt)
    thread.start()
    thread.join()  # unbounded: the sandbox limits the time of this process
    for failure in failures:
        raise failure


def _try_steps(matcher: LLMatcher) -> None:
    ends = {*_trial_tokenizer[0].eos_tokens}
    chosen = np.random.default_rng(0)
    for step in range(TRIAL_STEPS):
        mask = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
        allowed = [token for token in np.flatnonzero(mask).tolist() if token not in ends]
        if matcher.is_error() or (step == 0 and not mask.any()):
            raise TrtspecError(_first_line(matcher.get_error() or "no text matches it"))
        if not allowed:
            return
        matcher.consume_token(int(chosen.choice(allowed)))
