# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.store.writing import Append, Write, build, count, fail, leftovers, overwrite
from trtspec.core.errors import StepError
from trtspec.store.layout import Layout
from trtspec.store.store import Store


def test_leftovers_of_a_killed_step_are_removed_by_the_next_build_of_any_step(
    store: Store, tmp_path: Path, start: Callable[..., int], finish: Callable[[int], int]
) -> None:
    def die(out: Path) -> None:
        os.kill(os.getpid(), 9)

    dying = Write("a", tmp_path / "runs", trouble=die)
    assert finish(start(lambda: build(store, dying))) == -9
    assert leftovers(store)
    assert build(store, Write("b", tmp_path / "runs"))
    assert not leftovers(store)


def test_interrupted_eviction_is_completed_later(
    store: Store, step: Write, start: Callable[..., int], finish: Callable[[int], int]
) -> None:
    build(store, step)
    overwrite(store.root / "entries" / step.key[:2] / step.key / "files/two")
    assert finish(start(lambda: store.get(step.key), "store.before-delete")) == -9
    assert store.peek(step.key).why == "never built"
    assert build(store, step)
    assert not leftovers(store)


@pytest.mark.slow
def test_workspace_of_a_running_process_is_not_removed(
    store: Store, tmp_path: Path, start: Callable[..., int], finish: Callable[[int], int]
) -> None:
    slow = Write("slow", tmp_path / "runs", pause_s=0.3)
    pid = start(lambda: build(store, slow))
    deadline = time.monotonic() + 5
    while not count(slow) and time.monotonic() < deadline:
        time.sleep(0.005)
    build(store, Write("quick", tmp_path / "other"))
    assert finish(pid) == 0
    assert len(store.entries()) == 2


def test_gc_removes_resumable_output_unless_it_is_locked(store: Store) -> None:
    with pytest.raises(StepError):
        store.obtain(Append(fail))
    partial = store.root / "partial" / Append().key
    with Layout(store.root).lock(Append().key):
        Store(store.root).gc(keep=set())
        assert partial.exists()
    store.gc(keep=set())
    assert not partial.exists()
