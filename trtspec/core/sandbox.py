# SPDX-License-Identifier: Apache-2.0
"""Child processes with resource limits for trtspec functions that parse untrusted data.

A child is a fresh interpreter with an almost empty environment. The kernel limits its memory, CPU time, open files and
the size of the files it writes; the parent limits wall-clock time and response size. A child that exceeds a limit is
killed, and the caller gets a `SandboxError` with the cause. The child imports only the module of the function it runs.

    parent                                    child: python -I -m trtspec.core.sandbox LIMITS
    {"function": "module:name", ...} + bytes  -> function(argument, bytes)
    {"value": ...} or {"error": ...}          <-

A function takes a JSON value and bytes, and returns a JSON value. To reject its input, a function raises TrtspecError,
whose message and hint are passed on to the caller.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import queue
import resource
import select
import shlex
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import Any, NoReturn

from trtspec.core.errors import TrtspecError
from trtspec.core.isolated import isolated_python

START_S = 30.0  # time for starting an interpreter and its imports on a busy machine
MAX_QUEUED = 256  # requests waiting for a free child of a pool
LOOK_S = 0.05  # interval between memory checks of a busy child
PR_SET_PDEATHSIG = 1
KEPT = ("LD_LIBRARY_PATH", "TZ")  # environment variables that are passed to the child; they contain no secrets
# One thread per library, because the stack and the arena of each thread count towards the memory limit.
SINGLE = {"RAYON_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2",
          "TOKENIZERS_PARALLELISM": "false", "ARROW_DEFAULT_MEMORY_POOL": "system"}  # fmt: skip
_HEAD = struct.Struct("!QQ")

MEMORY, TIME, CRASH, OUTPUT, FAULT, REFUSED = "memory", "time", "crash", "output", "fault", "refused"


@dataclass(frozen=True)
class SandboxLimits:
    """Limits for a sandboxed child, in bytes, seconds and counts.

    `memory_bytes` limits the address space, `output_bytes` the response, and `file_bytes` each file that is written.
    `cpu_s` and `wall_s` limit each request.
    """

    memory_bytes: int = 1 << 30
    cpu_s: float = 10.0
    wall_s: float = 20.0
    output_bytes: int = 1 << 20
    file_bytes: int = 0
    files: int = 64


class SandboxError(TrtspecError):
    """A request failed in a sandboxed child; `cause` is MEMORY, TIME, CRASH, OUTPUT, FAULT or REFUSED."""

    def __init__(self, cause: str, message: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.cause = cause


def run_in_child(function: str, argument: Any, data: bytes = b"", *, limits: SandboxLimits) -> Any:
    """Call `function`, given as "module:name", in a new child process and return its result; raises SandboxError."""
    with start_in_child(function, argument, data, limits=limits) as finish:
        return finish()


@contextlib.contextmanager
def start_in_child(
    function: str, argument: Any, data: bytes = b"", *, limits: SandboxLimits
) -> Iterator[Callable[[], Any]]:
    """Call `function` in a new child process while the block runs; yield a function that waits for its result.

    The yielded function raises SandboxError. The child is killed when the block ends.
    """
    child = SandboxChild(limits)
    try:
        child.send(function, argument, data)
        yield child.receive
    finally:
        child.end()


class SandboxChild:
    """A child process that serves one request at a time; it starts with the first request and restarts after a kill."""

    def __init__(self, limits: SandboxLimits, prepare: tuple[str, Any] | None = None) -> None:
        """Create a child; `prepare` is a function and its argument, called in each new process before any request."""
        self.limits, self._prepare = limits, prepare
        self._process: subprocess.Popen[bytes] | None = None
        self._ready, self._deadline = False, 0.0

    def start(self) -> None:
        """Start the process if it is not running; imports and preparation happen during the first request.

        Raises OSError if the process cannot be started.
        """
        if self._process is None:
            kept = {name: os.environ[name] for name in KEPT if name in os.environ}
            options = json.dumps(asdict(self.limits) | {"parent": os.getpid()})
            self._process = subprocess.Popen(
                isolated_python("trtspec.core.sandbox", options),
                env=kept | SINGLE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                bufsize=0, start_new_session=True,
            )  # fmt: skip
            for pipe in (self._process.stdin, self._process.stdout):
                os.set_blocking(pipe.fileno(), False)  # type: ignore[union-attr]  # both are pipes
            self._ready = False

    def ask(self, function: str, argument: Any, data: bytes = b"") -> Any:
        """Return the function's result; a SandboxError kills the process unless the cause is REFUSED."""
        self.send(function, argument, data)
        return self.receive()

    def send(self, function: str, argument: Any, data: bytes = b"") -> None:
        """Start a request, whose result is returned by `receive`; raises SandboxError like `ask`."""
        self.start()
        with self._ending_after_errors():
            if not self._ready and self._prepare:
                self._write_request(*self._prepare, b"")
                self._read_answer()
            self._write_request(function, argument, data)

    def receive(self) -> Any:
        """Return the result of the request that was sent; raises SandboxError like `ask`."""
        with self._ending_after_errors():
            return self._read_answer()

    @contextlib.contextmanager
    def _ending_after_errors(self) -> Iterator[None]:
        try:
            yield
        except SandboxError as error:
            if error.cause != REFUSED:
                self.end()
            raise
        except BaseException:
            self.end()
            raise

    def kill(self) -> None:
        """Kill the process and its process group from another thread; a request in progress raises SandboxError."""
        process = self._process
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)

    def end(self) -> int | None:
        """Kill the process and its process group; return its exit status, or None if it is not running."""
        self.kill()
        process, self._process = self._process, None
        if process is None:
            return None
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        return process.wait(timeout=START_S)

    def _write_request(self, function: str, argument: Any, data: bytes) -> None:
        head = json.dumps({"function": function, "argument": argument}).encode()
        self._deadline = deadline = time.monotonic() + self.limits.wall_s + (0.0 if self._ready else START_S)
        self._write(_HEAD.pack(len(head), len(data)) + head, deadline)
        self._write(data, deadline)

    def _read_answer(self) -> Any:
        deadline = self._deadline
        length, _ = _HEAD.unpack(self._read(_HEAD.size, deadline))
        if length > self.limits.output_bytes + 4096:
            raise SandboxError(OUTPUT, f"the response is larger than {self.limits.output_bytes:,} bytes")
        try:
            answer = json.loads(self._read(length, deadline))
        except ValueError:
            raise SandboxError(CRASH, "the process sent an invalid response") from None
        if "error" in answer:
            raise SandboxError(str(answer["error"]), str(answer.get("message")), answer.get("hint"))
        self._ready = True
        return answer["value"]

    def _write(self, data: bytes, deadline: float) -> None:
        descriptor, left = self._process.stdin.fileno(), memoryview(data)  # type: ignore[union-attr]
        while left:
            try:
                left = left[os.write(descriptor, left[: 1 << 20]) :]
            except BlockingIOError:
                self._wait([], [descriptor], deadline)
            except BrokenPipeError:
                self._ended()

    def _read(self, length: int, deadline: float) -> bytes:
        descriptor, pieces = self._process.stdout.fileno(), bytearray()  # type: ignore[union-attr]
        while len(pieces) < length:
            try:
                piece = os.read(descriptor, min(length - len(pieces), 1 << 20))
            except BlockingIOError:
                self._wait([descriptor], [], deadline)
                continue
            if not piece:
                self._ended()
            pieces += piece
        return bytes(pieces)

    def _wait(self, readable: list[int], writable: list[int], deadline: float) -> None:
        """Wait until a pipe is ready; raise SandboxError at the deadline or if the child uses too much memory.

        The child's memory is polled because some kernels, such as macOS's, do not enforce RLIMIT_AS.
        """
        while not any(select.select(readable, writable, [], LOOK_S)):
            if time.monotonic() >= deadline:
                raise SandboxError(TIME, f"it took longer than {self.limits.wall_s:g} s")
            if self._resident() > self.limits.memory_bytes:
                raise SandboxError(MEMORY, _memory(self.limits.memory_bytes))

    def _resident(self) -> int:
        """Return the resident memory of the child in bytes; 0 if unknown."""
        try:
            with open(f"/proc/{self._process.pid}/statm", encoding="ascii") as file:  # type: ignore[union-attr]
                return int(file.read().split()[1]) * resource.getpagesize()
        except (OSError, IndexError, ValueError):
            return 0

    def _ended(self) -> NoReturn:
        """Raise the error that corresponds to the exit status of the child."""
        process = self._process
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=1.0)  # type: ignore[union-attr]
        status = self.end() or 0
        number = -status
        if number in (signal.SIGXCPU, signal.SIGPROF, signal.SIGALRM):
            raise SandboxError(TIME, f"it took more than {self.limits.cpu_s:g} s of CPU time")
        if number == signal.SIGABRT:
            raise SandboxError(CRASH, "the process aborted (a parser crash, or out of memory)")
        if number < 0 and not self._ready:  # failed to start; a failing parser sends a response
            raise TrtspecError(
                f"a child process of trtspec ended with status {status} before its first answer",
                hint=f"check that `{shlex.join(isolated_python('trtspec.core.sandbox'))}` imports trtspec",
            )
        name = signal.Signals(number).name if number > 0 else f"status {status}"
        raise SandboxError(CRASH, f"the process ended with {name}")


class SandboxPool:
    """A pool of sandboxed children; replacing a child that exceeded a limit does not delay other requests."""

    def __init__(self, size: int, limits: SandboxLimits, prepare: tuple[str, Any] | None = None) -> None:
        self._limits, self._prepare, self._size = limits, prepare, size
        self._idle: queue.LifoQueue[SandboxChild] = queue.LifoQueue()  # LIFO: low load starts only one child
        for _ in range(size):
            self._idle.put(SandboxChild(limits, prepare))
        self._threads = ThreadPoolExecutor(size, thread_name_prefix="sandbox")
        self._waiting = 0
        self._closed = threading.Event()

    def ask(self, function: str, argument: Any, data: bytes = b"") -> Any:
        """Return the function's result from the next free child; raises SandboxError."""
        try:
            child = self._idle.get(timeout=START_S + self._limits.wall_s)
        except queue.Empty:
            raise SandboxError(TIME, "no child process was free") from None
        try:
            return child.ask(function, argument, data)
        finally:
            self._put_back(child)

    def _put_back(self, child: SandboxChild) -> None:
        if self._closed.is_set():
            child.end()
            return
        with contextlib.suppress(OSError):  # the next request raises the error
            child.start()  # restart a killed child before it is needed
        self._idle.put(child)

    async def ask_async(self, function: str, argument: Any, data: bytes = b"") -> Any:
        """Return the result of `ask` without blocking the event loop; raises SandboxError if the queue is full."""
        if self._waiting >= MAX_QUEUED:
            raise SandboxError(TIME, f"more than {MAX_QUEUED} requests are waiting")
        from asyncio import get_running_loop  # lazy: children and builds start faster without it

        self._waiting += 1
        try:
            return await get_running_loop().run_in_executor(self._threads, self.ask, function, argument, data)
        finally:
            self._waiting -= 1

    def start(self) -> None:
        """Start one child ahead of the first request."""
        with contextlib.suppress(queue.Empty):
            self._put_back(self._idle.get_nowait())

    def close(self) -> None:
        self._closed.set()
        with contextlib.suppress(queue.Empty):
            while True:
                self._idle.get_nowait().end()
        self._threads.shutdown(wait=False, cancel_futures=True)


def _memory(limit: int) -> str:
    return f"it needed more than {limit >> 20:,} MiB of memory"


# The code below runs in the child.


def _serve(options: dict[str, Any]) -> None:
    limits = SandboxLimits(**{name: value for name, value in options.items() if name != "parent"})
    _confine(limits, options["parent"])
    incoming, outgoing = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    for descriptor in (0, 1):  # keep output of parsers out of the response stream
        os.dup2(os.open(os.devnull, os.O_RDWR), descriptor)
    while head := incoming.read(_HEAD.size):
        length, data_length = _HEAD.unpack(head)
        request, data = json.loads(incoming.read(length)), incoming.read(data_length)
        with _timed(limits):
            answer = _answer(request, data, limits)
        outgoing.write(_HEAD.pack(len(answer), 0) + answer)
        outgoing.flush()


def _confine(limits: SandboxLimits, parent: int) -> None:
    _limit(resource.RLIMIT_CORE, 0)
    _limit(resource.RLIMIT_AS, limits.memory_bytes)
    _limit(resource.RLIMIT_FSIZE, limits.file_bytes)
    _limit(resource.RLIMIT_NOFILE, limits.files)
    if sys.platform == "linux" and _has_one_thread(parent):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if os.getppid() != parent:
        os._exit(1)


def _has_one_thread(parent: int) -> bool:
    """Return True if the parent has a single thread, which is a precondition for PR_SET_PDEATHSIG.

    That signal is sent when the thread that forked ends, not the process. With a multi-threaded parent, the child
    instead ends at the end of its input or by the request's timer.
    """
    try:
        return len(os.listdir(f"/proc/{parent}/task")) == 1
    except OSError:
        return False


def _limit(what: int, value: int) -> None:
    _, most = resource.getrlimit(what)
    value = value if most == resource.RLIM_INFINITY else min(value, most)
    with contextlib.suppress(OSError, ValueError):  # not supported by every kernel; the parent polls the memory too
        resource.setrlimit(what, (value, value))


@contextlib.contextmanager
def _timed(limits: SandboxLimits) -> Iterator[None]:
    """Limit the CPU and wall-clock time of a request by timers in the child, which work even if the parent is gone."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = int(used.ru_utime + used.ru_stime + limits.cpu_s) + 2
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.getrlimit(resource.RLIMIT_CPU)[1]))
    signal.setitimer(signal.ITIMER_PROF, limits.cpu_s)
    signal.setitimer(signal.ITIMER_REAL, limits.wall_s + START_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)


def _answer(request: dict[str, Any], data: bytes, limits: SandboxLimits) -> bytes:
    """Call the requested function and return the JSON response, with a result or an error."""
    try:
        module, _, function = request["function"].partition(":")
        value = getattr(importlib.import_module(module), function)(request["argument"], data)
        answer = json.dumps({"value": value}).encode()
    except TrtspecError as error:
        return _error(REFUSED, error.message, error.hint)
    except MemoryError:
        return _error(MEMORY, _memory(limits.memory_bytes))
    except RecursionError:
        return _error(FAULT, "it is nested too deeply")
    except BaseException as error:  # Rust panics derive from BaseException
        words = str(error).strip().splitlines()
        return _error(FAULT, f"{type(error).__name__}: {words[0][:300]}" if words else type(error).__name__)
    if len(answer) > limits.output_bytes:
        return _error(OUTPUT, f"the response is larger than {limits.output_bytes:,} bytes")
    return answer


def _error(cause: str, message: str, hint: str | None = None) -> bytes:
    return json.dumps({"error": cause, "message": message[:2000], "hint": hint}).encode()


if __name__ == "__main__":
    _serve(json.loads(sys.argv[1]))
