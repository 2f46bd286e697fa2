# SPDX-License-Identifier: Apache-2.0
"""The null engine with the interface of the torch engine."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from benchmarks.front_stages.null_engine import MAX_STEPS, Steps
from trtspec.engine.generation.request import EngineRequest, Stats, Update
from trtspec.engine.generation.request_state import RequestHandle

CLOSE_S = 10.0


@dataclass
class Running:
    """A request: its updates, and the place of the first one's time; `at` is the number of emitted ones."""

    on_update: Callable[[Update], None]
    updates: tuple[Update, ...]
    place: int
    handle: RequestHandle
    at: int = 0


class NullScheduler:
    """The part of `Engine` that its served model uses: one thread emits the next tokens of all requests at each step.

    As in `Engine`, it calls a function of each request. The time of an emission is the time before this call.
    """

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        self._clock = memoryview(steps.times()).cast("B").cast("d")  # ten times as fast as numpy for one value
        self._changed = threading.Condition()
        self._new: list[Running] = []
        self._running: list[Running] = []
        self._on_step: Callable[[], None] = lambda: None
        self._is_closed = False
        self._updates = lru_cache(maxsize=1024)(self._make_updates)
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    @property
    def occupancy(self) -> tuple[int, int]:
        return len(self._running), len(self._new)

    def submit(self, request: EngineRequest, on_update: Callable[[Update], None]) -> RequestHandle:
        handle = RequestHandle()
        updates = self._updates(len(request.prompt_ids), request.max_new_tokens)
        place = request.sampling.seed * MAX_STEPS % len(self._clock)
        with self._changed:
            self._new.append(Running(on_update, updates, place, handle))
            self._changed.notify()
        return handle

    def set_step_callback(self, on_step: Callable[[], None]) -> None:
        self._on_step = on_step

    def set_draft_failure_callbacks(self, on_fallback: object, on_open: object) -> None:
        """It has no drafter."""

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._changed.notify()
        self._thread.join(CLOSE_S)

    def _make_updates(self, prompt_len: int, count: int) -> tuple[Update, ...]:
        """Return the updates of a request of `count` tokens."""
        made, updates = 0, []
        for ids in self._steps.parts(count):
            made += len(ids)
            updates.append(Update(ids, "length" if made == count else None, Stats(prompt_len, made)))
        return tuple(updates)

    def _run(self) -> None:
        due = time.monotonic()
        while not self._is_closed:
            due = max(due + self._steps.step_s, time.monotonic() - 1)  # it catches up with steps of the last second
            if (pause_s := due - time.monotonic()) > 0:
                time.sleep(pause_s)
            with self._changed:
                while not (self._new or self._running or self._is_closed):
                    self._changed.wait()  # unbounded: until the next request
                self._running, self._new = self._running + self._new, []
            self._running = [each for each in self._running if self._emit(each)]
            self._on_step()

    def _emit(self, request: Running) -> bool:
        """Emit the next tokens of a request and return whether it continues."""
        if request.handle.cancelled:
            request.on_update(Update((), "cancelled", Stats()))
            return False
        at = request.at
        request.at += 1
        self._clock[request.place + at] = time.monotonic()
        request.on_update(request.updates[at])
        return request.at < len(request.updates)
