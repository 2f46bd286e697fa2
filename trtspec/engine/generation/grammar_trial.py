# SPDX-License-Identifier: Apache-2.0
"""The trial of an untrusted guide in a child process: compilation and some steps within limits of memory and time.

The library's own limits are not sufficient: a schema of 1 kB can take a minute and gigabytes, or overflow the stack
(benchmarks/experiments/structured-output.md), and nothing stops a compilation in this process. A prepared child
therefore forks a process for each guide. The kernel ends that process at its limits, and the child stays prepared.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.core.errors import TrtspecError
from trtspec.core.sandbox import SandboxChild, SandboxError, SandboxLimits
from trtspec.engine.generation.grammar import CpuBudget, compile_grammar, first_line, load_library_tokenizer
from trtspec.engine.generation.request import Constraint

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

MODULE = "trtspec.engine.generation.grammar_trial"
STACK_BYTES = 1 << 20  # an eighth of a usual stack: a guide that fits does not overflow this process's
STEPS = 16
NICE = 10  # the engine's thread has precedence
# The child waits while the forked process, which has a shorter limit, tries a guide.
LIMITS = SandboxLimits(memory_bytes=1 << 30, cpu_s=30.0, wall_s=30.0, output_bytes=4096)
PASSED, REFUSED, TIME, CRASHED = "passed", "refused", "time", "crashed"


class GuideRefused(TrtspecError):
    """A guide is invalid or exceeds a limit of its trial; another trial would have the same result."""


class GuideTrial:
    """A child process that tries guides, one at a time; it starts with the first one."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        prepared = {"root": str(tokenizer.root.absolute()), "vocab_size": vocab_size}
        self._child = SandboxChild(LIMITS, (f"{MODULE}:prepare", prepared))

    def passes(self, constraint: Constraint, cpu_s: float) -> bool:
        """Return whether a guide compiles and takes some steps; False if this needs more than `cpu_s` seconds.

        Raises GuideRefused if the guide is invalid or exceeds another limit, and TrtspecError if the child fails.
        """
        what = f"the {constraint.guide_type} guide"
        argument = [constraint.guide_type, constraint.guide, cpu_s]
        try:
            outcome, message = self._child.ask(f"{MODULE}:attempt", argument)
        except SandboxError as error:
            raise TrtspecError(
                f"{what} cannot be compiled: {error.message}", hint="retry, or use a smaller one"
            ) from None
        if outcome == REFUSED:
            raise GuideRefused(f"{what} is not supported: {message}")
        if outcome == CRASHED:
            raise cannot_compile(constraint, message)
        return bool(outcome == PASSED)

    def kill(self) -> None:
        """Kill the child from another thread; a call of `passes` in progress raises TrtspecError."""
        self._child.kill()

    def end(self) -> None:
        self._child.end()


def cannot_compile(constraint: Constraint, reason: str) -> GuideRefused:
    return GuideRefused(f"the {constraint.guide_type} guide cannot be compiled: {reason}", hint="use a smaller one")


# The code below runs in the child.

_tokenizer: list[LLTokenizer] = []


def prepare(argument: dict[str, Any], data: bytes) -> None:
    """Load the tokenizer of the child process."""
    with suppress(OSError):
        os.nice(NICE)
    tokenizer = Tokenizer(Path(argument["root"]), vetted=True)
    _tokenizer[:] = [load_library_tokenizer(tokenizer, argument["vocab_size"])]


def attempt(argument: tuple[str, str, float], data: bytes) -> tuple[str, str]:
    """Try a guide in a separate process; return the outcome and the reason if it did not pass."""
    kind, guide, cpu_s = argument
    receiving, sending = os.pipe()
    process = os.fork()
    if not process:
        try:
            os.close(receiving)
            signal.setitimer(signal.ITIMER_PROF, cpu_s)  # its signal ends the process
            os.write(sending, _refusal(Constraint(kind, guide)).encode())
        except BaseException:
            os._exit(1)
        os._exit(0)
    os.close(sending)
    with os.fdopen(receiving, "rb") as pipe:
        message = pipe.read().decode(errors="replace")
    _, status = os.waitpid(process, 0)
    if os.WIFSIGNALED(status):
        ended = os.WTERMSIG(status)
        reason = f"its process ended with {signal.Signals(ended).name}"
        return (TIME, "") if ended in (signal.SIGPROF, signal.SIGXCPU) else (CRASHED, reason)
    if status:
        return CRASHED, "it exceeded the memory or the stack"
    return (REFUSED, message) if message else (PASSED, "")


def _refusal(constraint: Constraint) -> str:
    """Compile a grammar and take some steps, in a thread with a small stack; return the reason if it fails, or ""."""
    outcome = ["the process failed"]

    def run() -> None:
        try:
            _take_steps(compile_grammar(_tokenizer[0], constraint))
            outcome[0] = ""
        except TrtspecError as error:
            outcome[0] = error.message
        except RecursionError:
            outcome[0] = "it is nested too deeply"

    threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=run)
    thread.start()
    thread.join()  # unbounded: the kernel limits the time of this process
    return outcome[0]


def _take_steps(matcher: LLMatcher) -> None:
    ends = {*_tokenizer[0].eos_tokens}
    chosen, budget = np.random.default_rng(0), CpuBudget()
    for step in range(STEPS):
        begun = time.thread_time()
        mask = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
        budget.spend(time.thread_time() - begun, masks=1)
        allowed = [token for token in np.flatnonzero(mask).tolist() if token not in ends]
        if matcher.is_error() or (step == 0 and not mask.any()):
            raise TrtspecError(first_line(matcher.get_error() or "no text matches it"))
        if budget.is_exceeded:
            raise TrtspecError(budget.message)
        if not allowed:
            return
        matcher.consume_token(int(chosen.choice(allowed)))
