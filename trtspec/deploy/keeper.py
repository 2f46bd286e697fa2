# SPDX-License-Identifier: Apache-2.0
"""One server of a deployment: started, looked at, started again, ended."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from trtspec.artifacts.paths import REPOSITORY
from trtspec.deploy.children import Child, read_children
from trtspec.deploy.judge import STOPPED_S, Judge
from trtspec.deploy.look import SMOKE_REQUEST, ServerLook
from trtspec.deploy.running import Running
from trtspec.deploy.token import PLACEHOLDER, read_token
from trtspec.errors import TrtspecError
from trtspec.triton.client import Client
from trtspec.triton.closing import hide_token
from trtspec.triton.python_models.shutdown import ending_file
from trtspec.triton.server import close_shared_memory, remove_shared_memory

LOOK_EVERY_S = 0.25
ANSWER_S = 10.0  # for a first token; a server that is slower is asked again

Over = Callable[[], bool]  # asked at every look: whether that was the last


@dataclass
class Keeper:
    """The server of the revision that lies at `place`, of the deployment at `root`; `log` gets what it says."""

    root: Path
    place: Path
    log: Path
    shm_prefix: str
    server: Child = field(init=False)  # once it was started
    running: Running | None = field(default=None, init=False)

    def start(self) -> None:
        """Start it, with nothing of its token left for others to read."""
        self._ending.unlink(missing_ok=True)
        (self.server,) = read_children(self.place / "server.json")
        token = read_token(self.root)
        argv = [word.replace(PLACEHOLDER, token) for word in self.server.argv]
        self.running = Running.start(replace(self.server, argv=argv))
        threading.Thread(target=hide_token, args=(self.running.process, token, self.log), daemon=True).start()

    @property
    def _ending(self) -> Path:
        return ending_file(self.place / "served" / REPOSITORY)

    def _say_ending(self) -> None:
        with suppress(OSError):  # a full disk, or a revision that is thrown away: the requests end as they did
            self._ending.touch()

    @property
    def ended(self) -> int | None:
        """Return the status with which it ended, None while it runs."""
        assert self.running is not None
        return self.running.process.poll()

    def end(self, drain_s: float) -> None:
        """End it; its open requests get `drain_s` seconds, and what is open then an error."""
        if self.running is not None:
            self.running.end(drain_s, self._say_ending)
        remove_shared_memory(self.shm_prefix)

    def fault(self, over: Over, stopped_s: float = STOPPED_S) -> str:
        """Return what is wrong with it once something is, "" where `over` came first.

        What is stopped for `stopped_s` is wrong.
        """
        assert self.running is not None
        judge, eyes = Judge(stopped_s), ServerLook(self.running.process.pid, self.server.url)
        try:
            while not over():
                if fault := judge.fault(eyes.look(self.ended)):
                    return fault
                time.sleep(LOOK_EVERY_S)
            return ""
        finally:
            eyes.close()

    def until_ready(self, over: Over) -> str:
        """Return "" once it says that it is ready, or `over` came first; else why it is not."""
        client, deadline = Client.at(self.server.url, 2.0), time.monotonic() + self.server.start_s
        while not over():
            if (status := self.ended) is not None:
                return f"the server ended with status {status} while it started"
            if client.is_ready():
                close_shared_memory(self.shm_prefix)
                return ""
            if time.monotonic() >= deadline:
                return f"the server did not answer within {self.server.start_s:.0f} s of its start: it was not ready"
            time.sleep(LOOK_EVERY_S)
        return ""

    def until_answered(self, over: Over) -> str:
        """Return "" once it has answered a request, or `over` came first; else why it did not."""
        deadline = time.monotonic() + self.server.start_s
        refused = self.until_ready(over)
        while not refused and not over():
            if not (said := self._refusal()):
                break
            if (status := self.ended) is not None:
                return f"the server ended with status {status} while it started"
            if time.monotonic() >= deadline:
                return f"the server did not answer within {self.server.start_s:.0f} s of its start: {said}"
            time.sleep(LOOK_EVERY_S)
        return refused

    def _refusal(self) -> str:
        try:
            Client.at(self.server.url, ANSWER_S).generate(SMOKE_REQUEST)
        except TrtspecError as error:
            return error.message
        return ""
