# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from trtspec.store.step import Inputs, Step, StepProgress


@dataclass(frozen=True)
class Fetch(Step):
    VERSION = 1
    digest: str
    where: str = field(default="", metadata={"key": False})

    @property
    def name(self) -> str:
        return "fetch"

    def run(self, out: Path, inputs: Inputs, progress: StepProgress) -> None: ...


@dataclass(frozen=True)
class Join(Step):
    VERSION = 1
    role: str
    first: Fetch
    rest: tuple[Step, ...] = ()
    options: tuple[tuple[str, int], ...] = ()

    @property
    def name(self) -> str:
        return f"join-{self.role}"

    def run(self, out: Path, inputs: Inputs, progress: StepProgress) -> None: ...


@dataclass(frozen=True)
class Joined(Join):
    VERSION = 2


JOIN = Join("target", Fetch("aa"), (Fetch("bb"),), (("x", 1),))


def test_golden_keys() -> None:
    assert Fetch("aa").key == "e8354bfdb94e586a2ca2cb1bb0843b1d9a5663da30575692c3215377615bdb13"
    assert JOIN.key == "08bbd19f96363972f0dc5b62f884e74f9a80ade91a99a4eea6cbc95255185c3c"


def test_dependencies_are_the_steps_among_the_fields() -> None:
    assert JOIN.dependencies == (Fetch("aa"), Fetch("bb"))
    assert Fetch("aa").dependencies == ()


def test_every_field_and_every_upstream_field_is_in_the_key() -> None:
    others = [
        replace(JOIN, role="draft"),
        replace(JOIN, first=Fetch("bb")),
        replace(JOIN, rest=()),
        replace(JOIN, rest=(Fetch("aa"),)),
        replace(JOIN, rest=(JOIN,)),
        replace(JOIN, options=(("x", 2),)),
        Joined("target", Fetch("aa"), (Fetch("bb"),), (("x", 1),)),
    ]
    assert len({step.key for step in [JOIN, *others]}) == len(others) + 1


def test_the_version_is_in_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Fetch("aa").key
    monkeypatch.setattr(Fetch, "VERSION", 2)
    assert Fetch("aa").key != before


def test_what_is_marked_as_no_part_of_the_key_changes_no_key() -> None:
    assert Fetch("aa", where="/here").key == Fetch("aa", where="/there").key
    assert replace(JOIN, first=Fetch("aa", where="/here")).key == JOIN.key


def test_a_step_says_nothing_of_bytes_or_commands_unless_it_does() -> None:
    assert JOIN.total_bytes == 0
    assert JOIN.command is None


def test_a_mutable_field_is_a_bug() -> None:
    with pytest.raises(TypeError, match="a set has no canonical form"):
        _ = Fetch({"aa"}).key  # type: ignore[arg-type]


def test_inputs_are_found_by_step_and_only_where_declared() -> None:
    inputs = Inputs({Fetch("aa").key: Path("/entry/files")})
    assert inputs[Fetch("aa", where="elsewhere")] == Path("/entry/files")
    with pytest.raises(KeyError, match="join-target is not a dependency"):
        inputs[JOIN]
