# SPDX-License-Identifier: Apache-2.0
"""Execution of plans with a diamond of steps: fetch, two cuts of it, and a join of both."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from trtspec.core.errors import StepError
from trtspec.store.executor import Observer, Unobserved, execute
from trtspec.store.plan import StepPlan, plan_status
from trtspec.store.step import Inputs, Step, StepProgress
from trtspec.store.store import Store


@dataclass(frozen=True)
class Fetch(Step):
    VERSION = 1
    text: str
    trouble: BaseException | None = field(default=None, metadata={"key": False})

    @property
    def name(self) -> str:
        return "fetch"

    @property
    def total_bytes(self) -> int:
        return len(self.text)

    def run(self, out: Path, inputs: Inputs, progress: StepProgress) -> None:
        (out / "text").write_text(self.text)
        progress.advance(1)
        if self.trouble:
            raise self.trouble
        progress.advance(len(self.text) - 1)


@dataclass(frozen=True)
class Cut(Step):
    VERSION = 1
    source: Fetch
    upto: int
    trouble: BaseException | None = field(default=None, metadata={"key": False})

    @property
    def name(self) -> str:
        return f"cut-{self.upto}"

    def run(self, out: Path, inputs: Inputs, progress: StepProgress) -> None:
        (out / "text").write_text((inputs[self.source] / "text").read_text()[: self.upto])
        if self.trouble:
            raise self.trouble


@dataclass(frozen=True)
class Join(Step):
    VERSION = 1
    parts: tuple[Cut, ...]

    @property
    def name(self) -> str:
        return "join"

    def run(self, out: Path, inputs: Inputs, progress: StepProgress) -> None:
        (out / "text").write_text("+".join((inputs[part] / "text").read_text() for part in self.parts))


def diamond(text: str = "hello", trouble: BaseException | None = None) -> Join:
    return Join((Cut(Fetch(text), 2), Cut(Fetch(text), 3, trouble)))


class Recorder(Observer):
    def __init__(self) -> None:
        self.events: list[tuple[object, ...]] = []

    def step_started(self, step: Step, total_bytes: int) -> None:
        self.events.append(("started", step.name, total_bytes))

    def step_advanced(self, step: Step, n: int) -> None:
        self.events.append(("advanced", step.name, n))

    def step_finished(self, step: Step, status: str, seconds: float) -> None:
        assert 0 <= seconds < 10
        self.events.append((status, step.name))


def statuses(plan: StepPlan, store: Store) -> list[tuple[str, str, str]]:
    return [(each.name, each.status, each.why) for each in plan_status(plan, store)]


def results(plan: StepPlan, store: Store) -> list[tuple[str, str]]:
    return [(each.name, each.status) for each in execute(plan, store, Unobserved())]


def test_plan_has_every_key_once_and_dependencies_first() -> None:
    plan = StepPlan([diamond(), diamond(), Fetch("other")])
    assert [step.name for step in plan.steps] == ["fetch", "cut-2", "cut-3", "join", "fetch"]
    assert [step.key for step in plan.steps] == [step.key for step in StepPlan([diamond(), Fetch("other")]).steps]
    assert StepPlan([]).steps == ()


def test_status_before_the_first_run_has_a_reason_for_each_step(store: Store) -> None:
    assert statuses(StepPlan([diamond()]), store) == [
        ("fetch", "miss", "never built"),
        ("cut-2", "miss", "input fetch will be rebuilt"),
        ("cut-3", "miss", "input fetch will be rebuilt"),
        ("join", "miss", "input cut-2 will be rebuilt"),
    ]
    assert not store.root.exists(), "to plan is to change nothing"


def test_first_run_builds_every_step_and_second_run_hits_every_entry(store: Store) -> None:
    plan, seen = StepPlan([diamond()]), Recorder()
    first = execute(plan, store, seen)
    assert [(each.name, each.status) for each in first] == [
        ("fetch", "built"),
        ("cut-2", "built"),
        ("cut-3", "built"),
        ("join", "built"),
    ]
    assert (first[-1].output.files_dir / "text").read_text() == "he+hel"
    assert [each.key for each in first] == [step.key for step in plan.steps]
    assert seen.events[:5] == [
        ("started", "fetch", 5),
        ("advanced", "fetch", 1),
        ("advanced", "fetch", 4),
        ("built", "fetch"),
        ("started", "cut-2", 0),
    ]
    again = Recorder()
    second = execute(plan, store, again)
    assert again.events == [("hit", "fetch"), ("hit", "cut-2"), ("hit", "cut-3"), ("hit", "join")]
    assert [each.entry for each in second] == [each.entry for each in first]
    assert statuses(plan, store) == [(step.name, "hit", "") for step in plan.steps]


def test_second_run_calls_no_step(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    execute(StepPlan([diamond()]), store, Unobserved())
    for step_class in (Fetch, Cut, Join):
        monkeypatch.setattr(step_class, "run", None)
    assert {status for _, status in results(StepPlan([diamond()]), store)} == {"hit"}


def test_only_steps_affected_by_a_change_are_built(store: Store) -> None:
    execute(StepPlan([diamond()]), store, Unobserved())
    changed = StepPlan([Join((Cut(Fetch("hello"), 2), Cut(Fetch("hello"), 4)))])
    assert statuses(changed, store) == [
        ("fetch", "hit", ""),
        ("cut-2", "hit", ""),
        ("cut-4", "miss", "never built"),
        ("join", "miss", "input cut-4 will be rebuilt"),
    ]
    assert results(changed, store) == [("fetch", "hit"), ("cut-2", "hit"), ("cut-4", "built"), ("join", "built")]


def test_damaged_entry_is_reported_and_only_it_is_rebuilt(store: Store) -> None:
    plan = StepPlan([*diamond().parts, diamond()])
    damaged = execute(plan, store, Unobserved())[1].output.files_dir / "text"
    damaged.chmod(0o644)
    damaged.write_text("HE")
    assert statuses(plan, store)[1] == ("cut-2", "miss", "corrupt: files/text: bytes 0 to 1 differ")
    assert statuses(plan, store)[3] == ("join", "hit", "")
    assert statuses(StepPlan([diamond()]), store)[1][1] == "unneeded"
    assert results(plan, store) == [("fetch", "hit"), ("cut-2", "built"), ("cut-3", "hit"), ("join", "hit")]


def test_output_that_only_an_existing_output_needs_is_neither_fetched_nor_built(store: Store) -> None:
    plan, join = StepPlan([diamond()]), diamond()
    execute(plan, store, Unobserved())
    for step in plan.steps[:3]:
        store.remove(step.key)
    assert [status for _, status, _ in statuses(plan, store)] == ["unneeded", "unneeded", "unneeded", "hit"]
    assert [status for _, status in results(plan, store)] == ["unneeded", "unneeded", "unneeded", "hit"]
    store.remove(join.key)
    assert {status for _, status in results(plan, store)} == {"built"}


def test_output_that_one_of_two_readers_needs_is_built(store: Store) -> None:
    join = diamond()
    execute(StepPlan([join]), store, Unobserved())
    for step in (join, join.parts[0], join.parts[0].source):
        store.remove(step.key)
    assert results(StepPlan([join]), store) == [
        ("fetch", "built"), ("cut-2", "built"), ("cut-3", "hit"), ("join", "built"),
    ]  # fmt: skip
    execute(StepPlan([join]), store, Unobserved())
    for step in (join, join.parts[0].source):
        store.remove(step.key)
    assert [status for _, status in results(StepPlan([join]), store)] == ["unneeded", "hit", "hit", "built"]


@pytest.mark.parametrize("devices", [(), ("0", "1")])
def test_inputs_are_built_after_all_if_the_remote_store_has_lost_the_output(
    store: Store, devices: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Forgetful:
        """Lists all entries and has none."""

        def receive(self, step: Step, files: Path, start: object) -> None: ...
        def offer(self, step: Step, entry: object, start: object) -> None: ...
        def find(self, keys: Collection[str]) -> frozenset[str]:
            return frozenset(keys)

        def failure(self) -> str:
            return ""

        def resume(self) -> None: ...
        def distrust(self, key: str) -> None: ...

    monkeypatch.setattr(Join, "num_devices", 1)
    store.remote = Forgetful()
    plan = StepPlan([diamond()])
    assert [status for _, status, _ in statuses(plan, store)] == ["unneeded", "unneeded", "unneeded", "remote"]
    found = execute(plan, store, Unobserved(), devices)
    assert {each.status for each in found} == {"built"}
    assert (found[-1].output.files_dir / "text").read_text() == "he+hel"


@pytest.mark.parametrize("error", [ValueError("bug"), KeyboardInterrupt(), StepError("no")])
def test_failed_run_retains_finished_steps_and_resumes(store: Store, error: BaseException) -> None:
    with pytest.raises(type(error)) as caught:
        execute(StepPlan([diamond(trouble=error)]), store, Unobserved())
    assert caught.value is error
    assert {entry.name for entry in store.entries()} == {"fetch", "cut-2"}
    assert not any((store.root / "tmp").iterdir())
    assert results(StepPlan([diamond()]), store) == [
        ("fetch", "hit"),
        ("cut-2", "hit"),
        ("cut-3", "built"),
        ("join", "built"),
    ]


def test_entry_built_concurrently_by_another_process_is_a_hit(
    store: Store, start: Callable[..., int], finish: Callable[[int], int]
) -> None:
    class Meanwhile(Unobserved):
        def step_started(self, step: Step, total_bytes: int) -> None:
            assert finish(start(lambda: execute(StepPlan([step]), store, Unobserved()))) == 0

    assert [each.status for each in execute(StepPlan([Fetch("x")]), store, Meanwhile())] == ["hit"]
