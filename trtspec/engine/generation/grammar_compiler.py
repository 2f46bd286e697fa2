# SPDX-License-Identifier: Apache-2.0
"""Compilation of guides in separate threads, so that no request waits for the guide of another request.

A guide comes from a client and may be made to take long. It is tried in a child process first (`grammar_trial`) and
compiled in this process only if it passed.

* One thread tries every new guide for at most QUICK_S. It takes the newest first: in a flood of expensive guides, an
  ordinary one then waits for one of them at most, not for all.
* Guides that need more wait for a second thread, which gives each LONG_S.
* Both queues are bounded. Identical guides share one compilation, and refusals are remembered.

llguidance is imported when the first constrained request arrives.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from typing import TYPE_CHECKING, TypeVar

from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.core.errors import EngineFailed, Overloaded, TrtspecError
from trtspec.engine.generation.grammar import GrammarMatcher, compile_grammar, load_library_tokenizer
from trtspec.engine.generation.grammar_trial import GuideRefused, GuideTrial, cannot_compile
from trtspec.engine.generation.request import Constraint

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

HINT = "pip install 'trtspec[structured]'"
QUICK_S, LONG_S = 0.25, 3.0  # processor time of a trial
MAX_NEW, MAX_LONG = 64, 8  # waiting guides
MAX_COMPILED, MAX_REFUSED = 32, 256  # remembered guides
JOIN_S = 5.0

T = TypeVar("T")


@dataclass(frozen=True)
class CompiledGrammar:
    """A compiled guide; `matcher` starts a text. Texts share the states of its lexer."""

    library_matcher: LLMatcher
    own_ends: tuple[int, ...]
    vocab_size: int

    def matcher(self, end_ids: Iterable[int]) -> GrammarMatcher:
        """Return the state of an empty text, which may end with one of `end_ids` where the grammar accepts it."""
        return GrammarMatcher(self.library_matcher.deep_copy(), end_ids, self.own_ends, self.vocab_size)


class GuidesOverloaded(Overloaded):
    """Too many guides wait to be compiled; the client may retry later."""

    def __init__(self, waiting: int) -> None:
        TrtspecError.__init__(self, f"{self.WORDS}: {waiting} other guides wait to be compiled")


class GrammarCompiler:
    """Compiles constraints for one vocabulary; thread-safe. The most recently used grammars stay compiled."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        """`vocab_size` is the number of the model's logits; ids without a token are never allowed."""
        self._tokenizer, self._vocab_size = tokenizer, vocab_size
        self._changed = threading.Condition()
        self._pending: dict[Constraint, Future[CompiledGrammar]] = {}
        self._compiled: OrderedDict[Constraint, Future[CompiledGrammar]] = OrderedDict()
        self._refused: OrderedDict[Constraint, tuple[str, str | None]] = OrderedDict()  # message and hint
        self._new: list[Constraint] = []
        self._long: list[Constraint] = []
        self._loading = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._trials: list[GuideTrial] = []
        self._closed = False

    def submit(self, constraint: Constraint) -> Future[CompiledGrammar]:
        """Return the future of a compiled constraint without waiting for it.

        The future raises TrtspecError if the constraint is invalid or exceeds a limit, and GuidesOverloaded if too many
        newer ones arrived before its turn. `submit` itself raises TrtspecError if llguidance is not installed or the
        constraint was refused before, and EngineFailed after `close`.
        """
        if find_spec("llguidance") is None:
            raise TrtspecError("structured output needs llguidance, which is not installed", hint=HINT)
        with self._changed:
            if self._closed:
                raise EngineFailed("the engine was closed")
            if (refused := _used(self._refused, constraint)) is not None:
                raise GuideRefused(refused[0], hint=refused[1])
            if (known := _used(self._compiled, constraint) or self._pending.get(constraint)) is not None:
                return known
            future = self._pending[constraint] = Future()
            self._new.append(constraint)
            dropped = self._new.pop(0) if len(self._new) > MAX_NEW else None
            self._start()
            self._changed.notify_all()
        if dropped is not None:
            self._finish(dropped, GuidesOverloaded(MAX_NEW))
        return future

    def matcher(self, constraint: Constraint, end_ids: Iterable[int]) -> GrammarMatcher:
        """Compile a constraint and return the state of an empty text; raises as `submit` and its future do."""
        return self.submit(constraint).result().matcher(end_ids)

    def close(self) -> None:
        """Refuse the waiting constraints, and end the threads and their child processes."""
        with self._changed:
            self._closed = True
            waiting, self._new, self._long = [*self._new, *self._long], [], []
            self._changed.notify_all()
        for constraint in waiting:
            self._finish(constraint, EngineFailed("the engine was closed"))
        for trial in self._trials:
            trial.kill()
        for thread in self._threads:
            thread.join(JOIN_S)

    def _start(self) -> None:
        """Start the threads with the first constraint."""
        if self._threads:
            return
        for takes_long in (False, True):
            trial = GuideTrial(self._tokenizer, self._vocab_size)
            name = "trtspec-long-guides" if takes_long else "trtspec-guides"
            thread = threading.Thread(target=self._work, args=(trial, takes_long), name=name, daemon=True)
            self._trials.append(trial)
            self._threads.append(thread)
            thread.start()

    def _work(self, trial: GuideTrial, takes_long: bool) -> None:
        while (constraint := self._next(takes_long)) is not None:
            try:
                if trial.passes(constraint, LONG_S if takes_long else QUICK_S):
                    self._finish(constraint, self._compile(constraint))
                elif takes_long:
                    self._finish(constraint, cannot_compile(constraint, f"it needs more than {LONG_S:g} s"))
                else:
                    self._postpone(constraint)
            except Exception as error:
                self._finish(constraint, error)
        trial.end()

    def _next(self, takes_long: bool) -> Constraint | None:
        """Wait for a constraint of a thread's queue; return None after `close`."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or (self._long if takes_long else self._new))
            if self._closed:
                return None
            return self._long.pop(0) if takes_long else self._new.pop()

    def _postpone(self, constraint: Constraint) -> None:
        """Move a constraint that takes long to the other thread's queue, or refuse it if that is full."""
        with self._changed:
            fits = len(self._long) < MAX_LONG and not self._closed
            if fits:
                self._long.append(constraint)
                self._changed.notify_all()
        if not fits:
            self._finish(constraint, GuidesOverloaded(MAX_LONG))

    def _compile(self, constraint: Constraint) -> CompiledGrammar:
        compiled = compile_grammar(self._library_tokenizer, constraint)
        return CompiledGrammar(compiled, tuple(self._library_tokenizer.eos_tokens), self._vocab_size)

    @property
    def _library_tokenizer(self) -> LLTokenizer:
        with self._loading:
            return self._tokenizer_once

    @cached_property
    def _tokenizer_once(self) -> LLTokenizer:
        return load_library_tokenizer(self._tokenizer, self._vocab_size)

    def _finish(self, constraint: Constraint, outcome: CompiledGrammar | Exception) -> None:
        """Remember the outcome unless it may be another one later, and pass it on."""
        with self._changed:
            future = self._pending.pop(constraint)
            if isinstance(outcome, CompiledGrammar):
                _remember(self._compiled, constraint, future, MAX_COMPILED)
            elif isinstance(outcome, GuideRefused):
                _remember(self._refused, constraint, (outcome.message, outcome.hint), MAX_REFUSED)
        if isinstance(outcome, Exception):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


def _remember(table: OrderedDict[Constraint, T], constraint: Constraint, value: T, most: int) -> None:
    table[constraint] = value
    if len(table) > most:
        table.popitem(last=False)


def _used(table: OrderedDict[Constraint, T], constraint: Constraint) -> T | None:
    """Mark a constraint as the most recently used and return its value, or None if it has no value."""
    if constraint not in table:
        return None
    table.move_to_end(constraint)
    return table[constraint]
