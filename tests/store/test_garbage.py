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


def test_a_build_killed_inside_the_step_is_collected_by_the_next_build_of_anything(
    store: Store, tmp_path: Path, start: Callable[..., int], finish: Callable[[int], int]
) -> None:
    def die(out: Path) -> None:
        os.kill(os.getpid(), 9)

    dying = Write("a", tmp_path / "runs", trouble=die)
    assert finish(start(lambda: build(store, dying))) == -9
    assert leftovers(store)
    assert build(store, Write("b", tmp_path / "runs"))
    assert not leftovers(store)


def test_an_eviction_killed_half_way_is_finished_later(
    store: Store, step: Write, start: Callable[..., int], finish: Callable[[int], int]
) -> None:
    build(store, step)
    overwrite(store.root / "entries" / step.key[:2] / step.key / "files/two")
    assert finish(start(lambda: store.get(step.key), "store.before-delete")) == -9
    assert store.peek(step.key).why == "never built"
    assert build(store, step)
    assert not leftovers(store)


@pytest.mark.slow
def test_the_workspace_of_a_living_process_is_left_alone(
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


def test_gc_throws_away_what_could_be_resumed_unless_it_is_being_written(store: Store) -> None:
    with pytest.raises(StepError):
        store.obtain(Append(fail))
    partial = store.root / "partial" / Append().key
    with Layout(store.root).lock(Append().key):
        Store(store.root).gc(keep=set())
        assert partial.exists()
    store.gc(keep=set())
    assert not partial.exists()
