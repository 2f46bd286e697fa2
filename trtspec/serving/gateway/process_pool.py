# SPDX-License-Identifier: Apache-2.0
"""Several gateway processes behind one address: their sockets, their restarts and their end.

Each process has a socket of its own with SO_REUSEPORT, and the kernel distributes connections over them. This process
keeps the sockets open, so that connections of a process that died wait for its successor.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from trtspec.core.errors import TrtspecError
from trtspec.core.processes import die_with_parent

log = logging.getLogger(__name__)

BACKLOG = 2048
SEND_BUFFER_BYTES = 64 << 10  # small, to detect early that a client stops reading
SIGNALS = (signal.SIGTERM, signal.SIGINT)
CRASHED = 70  # exit code of an unexpected error
SOON_S = 2.0  # a process that ends earlier has failed to start
MAX_FAILED_STARTS = 3  # in succession, of all processes
RETRY_S = 0.5


def listen(host: str, port: int, processes: int = 1) -> list[socket.socket]:
    """Return one listening socket per process; raises TrtspecError if the address is not available."""
    if processes > 1:
        _bind(host, port, shared=False).close()  # fails if another server has this port, even with SO_REUSEPORT
    sockets: list[socket.socket] = []
    for _ in range(processes):
        try:
            sockets.append(_bind(host, port, shared=processes > 1))
        except TrtspecError:
            for each in sockets:
                each.close()
            raise
        port = sockets[0].getsockname()[1]
        sockets[-1].listen(BACKLOG)
    return sockets


def _bind(host: str, port: int, *, shared: bool) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
    if shared:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise TrtspecError(f"cannot listen: {error.strerror}", where=f"{host}:{port}") from None
    return listener


class ProcessPool:
    """Runs `serve(index, listener)` in one child process per listener until SIGTERM or SIGINT, and restarts it.

    `ended(index)` is called after a child died, before its successor starts.
    """

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        serve: Callable[[int, socket.socket], None],
        ended: Callable[[int], None],
    ) -> None:
        self._listeners, self._serve, self._ended = listeners, serve, ended
        self._running: dict[int, tuple[int, float]] = {}  # index and start time by process id
        self._failed_starts = 0
        self._is_stopping = False

    def run(self) -> int:
        """Return the exit code: 0 after a signal, otherwise that of a child that failed to start."""
        for sign in SIGNALS:
            signal.signal(sign, self._stop)
        for index in range(len(self._listeners)):
            self._start(index)
        code = 0
        while self._running:
            pid, status = os.wait()  # unbounded: until a process ends, or a signal ends all
            index, began = self._running.pop(pid)
            if self._is_stopping:
                continue
            ended = os.waitstatus_to_exitcode(status)
            self._failed_starts = self._failed_starts + 1 if time.monotonic() - began < SOON_S else 0
            is_refusal = ended > 0 and ended != CRASHED  # a user's mistake, which a restart does not correct
            if is_refusal or self._failed_starts >= MAX_FAILED_STARTS:
                code = abs(ended) or 1
                self._stop()
                continue
            log.error("gateway process %d ended with status %d; restarting it", pid, ended)
            self._ended(index)
            if self._failed_starts:
                time.sleep(RETRY_S)
            self._start(index)
        return code

    def _start(self, index: int) -> None:
        """Start the process with number `index`, unless a signal has ended all."""
        arrange = die_with_parent()
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # the child must not run this process's handler
        pid = 0 if self._is_stopping else os.fork()
        if pid or self._is_stopping:
            if pid:
                self._running[pid] = index, time.monotonic()
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            return
        code = CRASHED
        try:
            for sign in SIGNALS:
                signal.signal(sign, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            arrange()
            for each in self._listeners:
                if each is not self._listeners[index]:
                    each.close()
            self._serve(index, self._listeners[index])
            code = 0
        except TrtspecError as error:
            log.error("%s", error)
            code = error.exit_code
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def _stop(self, *_: Any) -> None:
        """End all processes; connections that none of them has accepted are closed."""
        self._is_stopping = True
        for each in self._listeners:
            each.close()
        for pid in [*self._running]:
            os.kill(pid, signal.SIGTERM)
