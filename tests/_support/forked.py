# SPDX-License-Identifier: Apache-2.0
"""Child processes that start fast: `Popen` and `run` like subprocess's, for this interpreter's `-m` and `-c`.

A template process imports slow modules once for all tests of a worker and forks itself for each child. A child is
killed when its parent ends. Tests of start-up, imports or memory limits need a separate process from subprocess.

`python -m tests._support.forked FOLDER` is the template process. It listens on a socket in FOLDER and exits when its
stdin closes. It may use another interpreter, for example from an engine's environment.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import select
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from trtspec.core import registry

CORE = (
    "huggingface_hub",
    "huggingface_hub.hf_api",
    "numpy",
    "rich.console",
    "rich.progress",
    "tqdm.auto",
    "trtspec.planning.check.recipe",
    "trtspec.planning.pipeline",
    "trtspec.planning.pipeline",
    "trtspec.planning.inspection",
    "trtspec.planning.init.write",
    "trtspec.checkpoints.hub",
)
# imports of commands that compute
ENGINE = (
    "torch",
    "transformers.models.llama.modeling_llama",
    "trtspec.planning.doctor",
    "trtspec.bench.verify",
    "trtspec.bench.bench",
    "trtspec.bench.artifact",
    "trtspec.deployment.base",
    "trtspec.engine.engine",
)
START_S = 120
SOCKET = "socket"


class Popen(subprocess.Popen[str]):
    """`[sys.executable, "-m" or "-c", ...]` in a fork; of subprocess's parameters `cwd` and `env` are supported."""

    imported: tuple[str, ...] = CORE

    def _execute_child(  # type: ignore[override]
        self, args: Sequence[object], executable: Any, preexec_fn: Any, close_fds: Any, pass_fds: Any, cwd: Any,
        env: Any, startupinfo: Any, creationflags: Any, shell: Any, p2cread: int, p2cwrite: int, c2pread: int,
        c2pwrite: int, errread: int, errwrite: int, *rest: Any,
    ) -> None:  # fmt: skip
        assert args[0] == sys.executable
        assert preexec_fn is None
        environment = {**os.environ} if env is None else env
        job = {"program": [*map(str, args[1:])], "cwd": str(cwd or Path.cwd()), "environment": environment}
        streams = [own if given == -1 else given for own, given in enumerate((p2cread, c2pwrite, errwrite))]
        self._socket = ask(started_server(self.imported) / SOCKET, job, streams)
        self.pid = int(self._socket.recv(20))
        self._child_created = True
        self._close_pipe_fds(p2cread, p2cwrite, c2pread, c2pwrite, errread, errwrite)

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        try:
            said = self._socket.recv(20, socket.MSG_DONTWAIT if wait_flags else 0)
        except BlockingIOError:
            return 0, 0
        self._socket.close()
        return self.pid, int(said)

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        if self.returncode is None:
            pid, status = self._try_wait(os.WNOHANG)
            if pid == self.pid:
                self._handle_exitstatus(status)
        return self.returncode


class Computing(Popen):
    """A child of a process that has also imported the compute modules."""

    imported = CORE + ENGINE


def run(
    arguments: Sequence[object], timeout: float, cwd: Path | None = None, env: dict[str, str] | None = None,
    stdout: Any = subprocess.PIPE, kind: type[Popen] = Popen,
) -> subprocess.CompletedProcess[str]:  # fmt: skip
    """Run a child with empty stdin; return both output streams and the exit code."""
    streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": stdout, "stderr": subprocess.PIPE}
    with kind(arguments, cwd=cwd, env=env, text=True, **streams) as process:  # type: ignore[arg-type]
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


SHIM = """\
#!{python}
import json, os, signal, socket, sys
asked = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
asked.connect({path!r})
job = {{"program": [*{program!r}, *sys.argv[1:]], "cwd": os.getcwd(), "environment": {{**os.environ}}}}
socket.send_fds(asked, [json.dumps(job).encode()], [0, 1, 2])
child = int(asked.recv(20))
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, _: os.kill(child, number))
code = os.waitstatus_to_exitcode(int(asked.recv(20)))
sys.exit(code if code >= 0 else 128 - code)
"""


def make_program(
    path: Path, program: Sequence[str] = ("-m", "trtspec"), imported: tuple[str, ...] = CORE + ENGINE,
    python: str = sys.executable,
) -> None:  # fmt: skip
    """Write a shell program that runs `trtspec`, or another program of an interpreter, in a fork.

    Without a program it acts as the interpreter and takes a script.
    """
    asked = str(started_server(imported, python) / SOCKET)
    path.write_text(SHIM.format(python=python, path=asked, program=[*program]))
    path.chmod(0o755)


@cache
def started_server(modules: tuple[str, ...], python: str = sys.executable) -> Path:
    """Return the folder of a template process that has imported some modules; it ends with this process."""
    folder = Path(tempfile.mkdtemp(prefix="forked-"))
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    server = subprocess.Popen(
        [python, "-m", __name__, folder, *modules], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        cwd=Path(__file__).parents[2], env=environment,
    )  # fmt: skip
    assert server.stdout is not None
    assert server.stdout.readline() == "ready\n"
    atexit.register(server.communicate, timeout=START_S)
    return folder


def ask(path: Path, job: dict[str, Any], streams: Sequence[int]) -> socket.socket:
    """Start a job with three file descriptors; the socket returns the child's id, and at its end its status."""
    asked = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    asked.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    asked.connect(str(path))
    socket.send_fds(asked, [json.dumps(job).encode()], list(streams))
    return asked


def serve(folder: Path, modules: Sequence[str]) -> None:
    """Fork for every job until stdin is closed."""
    for module in modules:
        importlib.import_module(module)
    if CORE[0] in modules:
        _be_ready_for_commands()
    gc.collect()
    gc.freeze()  # otherwise the first collection of every child would copy all of it
    path = folder / SOCKET
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener, selectors.DefaultSelector() as waiting:
        listener.bind(str(path))
        listener.listen()
        print("ready", flush=True)  # noqa: T201
        waiting.register(listener, selectors.EVENT_READ)
        waiting.register(sys.stdin, selectors.EVENT_READ)
        while all(key.fileobj is listener for key, _ in waiting.select()):
            asked, _ = listener.accept()
            if not os.fork():
                listener.close()
                _attend(asked)
            asked.close()
            _reap()
    path.unlink()
    folder.rmdir()


def _be_ready_for_commands() -> None:
    for module in [name for name in sys.modules if name.startswith(CORE[0])]:
        del sys.modules[module]  # it reads the environment on import; its own imports stay loaded
    from trtspec.cli.app import make_command

    make_command()


def _reap() -> None:
    """Reap terminated children; their time counts as this process's."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _attend(asked: socket.socket) -> None:
    """Run a job in a fork and report its status."""
    said, streams, _, _ = socket.recv_fds(asked, 1 << 20, 3)
    child = os.fork()
    if not child:
        asked.close()
        _become(json.loads(said), streams)
    for stream in {*streams, 0, 1, 2}:
        os.close(stream)  # otherwise readers would wait for this process
    with suppress(BrokenPipeError):
        asked.send(b"%d" % child)
        _kill_without(asked, child)
        asked.send(b"%d" % os.waitpid(child, 0)[1])
    os._exit(0)


def _kill_without(asked: socket.socket, child: int) -> None:
    """Wait until a child has ended, and kill it if its parent is gone."""
    ended = os.pidfd_open(child)
    if ended not in select.select([asked, ended], [], [])[0]:  # unbounded: the parent decides how long to wait
        os.kill(child, signal.SIGKILL)


def _become(job: dict[str, Any], streams: Sequence[int]) -> None:
    """Act as the interpreter of a job until it ends."""
    os.environ.clear()
    os.environ.update(job["environment"])
    os.chdir(job["cwd"])
    _find_packages(os.environ.get("PYTHONPATH", ""))
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", buffering=1 if os.isatty(1) else -1, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)  # noqa: SIM115
    code = _code_of(*job["program"])
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
    except OSError:
        code = 120  # the interpreter's code for this case
    os._exit(code)


def _find_packages(path: str) -> None:
    """Search for packages like a new interpreter."""
    if path:
        sys.path[:0] = path.split(os.pathsep)
        registry.discover_all.cache_clear()
        registry.extension_names.cache_clear()


def _code_of(how: str, *words: str) -> int:
    sys.argv = [how, *words[how in ("-m", "-c") :]]
    try:
        if how == "-m":
            runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        elif how == "-c":
            exec(compile(words[0], "<string>", "exec"), {"__name__": "__main__"})
        else:
            runpy.run_path(how, run_name="__main__")
    except SystemExit as ended:
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)  # noqa: T201
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    serve(Path(sys.argv[1]), sys.argv[2:])
