# SPDX-License-Identifier: Apache-2.0
"""Steps that use devices run concurrently with each other and with other steps, each on its own devices."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from trtspec.core.errors import StepError
from trtspec.store.executor import Observer, Unobserved, execute
from trtspec.store.plan import StepPlan
from trtspec.store.step import Inputs, Step, StepProgress
from trtspec.store.store import Store

PATIENCE_S = 10.0


class Scene:
    """Records what steps in threads do."""

    def __init__(self) -> None:
        self.running: dict[str, tuple[str, ...]] = {}
        self.overlaps: set[frozenset[str]] = set()
        self.lent: dict[str, tuple[str, ...]] = {}
        self.order: list[str] = []
        self.lock = threading.Lock()

    def enter(self, name: str, devices: tuple[str, ...]) -> None:
        with self.lock:
            busy = [device for others in self.running.values() for device in others]
            assert not set(busy) & set(devices), "devices are one step's alone"
            self.running[name] = self.lent[name] = devices
            self.overlaps.add(frozenset(self.running))
            self.order.append(name)

    def leave(self, name: str) -> None:
        with self.lock:
            del self.running[name]


NOTHING = {"key": False}


@dataclass(frozen=True)
class Work(Step):
    """Work on devices until `until` returns True."""

    VERSION = 1
    title: str
    devices: int = 0
    needs: tuple[Work, ...] = ()
    scene: Scene = field(default_factory=Scene, metadata=NOTHING)
    until: Callable[[Scene], bool] = field(default=lambda scene: True, metadata=NOTHING)
    trouble: BaseException | None = field(default=None, metadata=NOTHING)

    @property
    def name(self) -> str:
        return self.title

    @property
    def num_devices(self) -> int:
        return self.devices

    def run(self, out: Path, inputs: Inputs, progress: StepProgress) -> None:
        for need in self.needs:
            assert (inputs[need] / "done").exists()
        self.scene.enter(self.title, inputs.devices)
        deadline = time.monotonic() + PATIENCE_S
        try:
            progress.set_message(f"{self.title} runs")
            while not self.until(self.scene) and time.monotonic() < deadline:
                progress.advance(0)
                time.sleep(0.001)
            if self.trouble:
                raise self.trouble
            (out / "done").touch()
        finally:
            self.scene.leave(self.title)


def beside(*names: str) -> Callable[[Scene], bool]:
    """Return True once the steps have run at the same time."""
    return lambda scene: any(frozenset(names) <= seen for seen in scene.overlaps)


def never(scene: Scene) -> bool:
    return False


def names(store: Store) -> set[str]:
    return {entry.name for entry in store.entries()}


def test_two_devices_run_two_steps_while_the_third_waits(store: Store) -> None:
    scene = Scene()
    steps = [Work(title, 1, scene=scene, until=beside("a", "b")) for title in "abc"]
    results = execute(StepPlan(steps), store, Unobserved(), devices=("x", "y"))
    assert [result.name for result in results] == ["a", "b", "c"]
    assert frozenset("ab") in scene.overlaps
    assert not any(len(seen) > 2 for seen in scene.overlaps)
    assert {scene.lent["a"], scene.lent["b"]} == {("x",), ("y",)}
    assert execute(StepPlan(steps), store, Unobserved(), devices=("x", "y"))[0].status == "hit"


def test_one_device_runs_steps_one_after_another(store: Store) -> None:
    scene = Scene()
    execute(StepPlan([Work(title, 1, scene=scene) for title in "abc"]), store, Unobserved(), devices=("x",))
    assert scene.overlaps == {frozenset("a"), frozenset("b"), frozenset("c")}
    assert set(scene.lent.values()) == {("x",)}


def test_steps_without_devices_run_in_plan_order(store: Store) -> None:
    scene = Scene()
    execute(
        StepPlan([Work("a", 2, scene=scene), Work("b", scene=scene), Work("c", 1, scene=scene)]), store, Unobserved()
    )
    assert (scene.order, set(scene.lent.values())) == (["a", "b", "c"], {()})


def test_step_requesting_too_many_devices_gets_all_of_them(store: Store) -> None:
    scene = Scene()
    steps = [Work("large", 8, scene=scene), Work("small", 1, scene=scene)]
    execute(StepPlan(steps), store, Unobserved(), devices=("x", "y"))
    assert scene.lent["large"] == ("x", "y")
    assert frozenset({"large", "small"}) not in scene.overlaps


def test_steps_without_devices_run_concurrently_in_the_main_thread(store: Store) -> None:
    """A step without devices runs while one with devices does; the step that depends on both is last."""
    scene, threads = Scene(), set()

    def note(scene: Scene) -> bool:
        threads.add(threading.current_thread())
        return beside("device", "plain")(scene)

    plain = Work("plain", scene=scene, until=note)
    device = Work("device", 1, scene=scene, until=beside("device", "plain"))
    last = Work("last", 1, (plain, device), scene=scene)
    results = execute(StepPlan([device, plain, last]), store, Unobserved(), devices=("x",))
    assert [result.name for result in results] == ["device", "plain", "last"]
    assert scene.order[-1] == "last"
    assert threads == {threading.main_thread()}


@pytest.mark.parametrize("error", [StepError("no"), ValueError("bug")])
def test_first_failure_ends_running_steps_and_is_raised(store: Store, error: Exception) -> None:
    scene = Scene()
    together = beside("fails", "device", "plain")
    steps = [
        Work("fails", 1, scene=scene, until=together, trouble=error),
        Work("device", 1, scene=scene, until=never),
        Work("plain", scene=scene, until=never),
        Work("later", scene=scene),
    ]
    with pytest.raises(type(error)) as caught:
        execute(StepPlan(steps), store, Unobserved(), devices=("x", "y"))
    assert caught.value is error
    assert not scene.running, "no step may run after execute returned"
    assert "later" not in scene.order
    assert names(store) == set()
    assert not any((store.root / "tmp").iterdir())


def test_failure_in_the_main_thread_ends_steps_on_devices(store: Store) -> None:
    scene, error = Scene(), StepError("no")
    steps = [
        Work("device", 1, scene=scene, until=never),
        Work("plain", scene=scene, until=beside("device", "plain"), trouble=error),
    ]
    with pytest.raises(StepError) as caught:
        execute(StepPlan(steps), store, Unobserved(), devices=("x",))
    assert caught.value is error
    assert not scene.running


def to_this_thread(sign: signal.Signals) -> None:
    """Send a signal to the working thread, to which the system may deliver a process signal."""
    signal.pthread_kill(threading.get_ident(), sign)


@pytest.mark.slow
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("send", [lambda sign: os.kill(os.getpid(), sign), to_this_thread], ids=["process", "thread"])
def test_interrupt_ends_running_steps(
    store: Store, send: Callable[[signal.Signals], None], sign: signal.Signals
) -> None:
    scene = Scene()

    class Interrupter(Unobserved):
        def step_message(self, step: Step, text: str) -> None:
            send(sign)

    with pytest.raises(KeyboardInterrupt):
        execute(StepPlan([Work("device", 1, scene=scene, until=never)]), store, Interrupter(), devices=("x",))
    assert not scene.running
    assert names(store) == set()


def test_finished_step_is_retained_after_a_failure(store: Store) -> None:
    scene = Scene()
    done = Work("done", 1, scene=scene)
    steps = [done, Work("fails", 1, (done,), scene=scene, trouble=StepError("no"))]
    with pytest.raises(StepError, match="no"):
        execute(StepPlan(steps), store, Unobserved(), devices=("x", "y"))
    assert names(store) == {"done"}


def test_observer_is_called_by_one_thread_at_a_time(store: Store) -> None:
    scene, told = Scene(), []
    inside = threading.Semaphore(1)

    class Exclusive(Observer):
        def step_started(self, step: Step, total_bytes: int) -> None:
            self.note("started", step)

        def step_message(self, step: Step, text: str) -> None:
            self.note(text, step)

        def step_finished(self, step: Step, status: str, seconds: float) -> None:
            self.note(status, step)

        def note(self, what: str, step: Step) -> None:
            assert inside.acquire(blocking=False), "two threads at once"
            time.sleep(0.005)
            told.append((step.name, what))
            inside.release()

    titles = "abcd"
    execute(StepPlan([Work(title, 1, scene=scene) for title in titles]), store, Exclusive(), devices=tuple("wxyz"))
    for title in titles:
        mine = [what for name, what in told if name == title]
        assert mine == ["started", f"{title} runs", "built"]
