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


def test_step_keys_match_golden_values() -> None:
    assert Fetch("aa").key == "0ea9caddb87ab0b6e760db3caaa344c975b614a5d7492b25e68afa084d819f82"
    assert JOIN.key == "9c6e909af9569ae66e50ac7ee502737980ef0fa050c8a435f4ed1fc5bc64bbd7"


def test_class_of_another_package_has_a_different_key() -> None:
    def key_in(module: str) -> str:
        return type("Fetch", (Fetch,), {"__module__": module, "__qualname__": "Fetch"})("aa").key

    assert len({key_in("trtspec.steps"), key_in("toy"), key_in("toy.steps"), key_in("trtspec_toy")}) == 4
    assert key_in("trtspec.steps") == key_in("trtspec.elsewhere"), "a move within trtspec rebuilds nothing"


def test_dependencies_are_the_step_fields() -> None:
    assert JOIN.dependencies == (Fetch("aa"), Fetch("bb"))
    assert Fetch("aa").dependencies == ()


def test_key_includes_every_field_and_upstream_field() -> None:
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


def test_key_includes_the_version(monkeypatch: pytest.MonkeyPatch) -> None:
    before = Fetch("aa").key
    monkeypatch.setattr(Fetch, "VERSION", 2)
    assert Fetch("aa").key != before


def test_key_ignores_fields_marked_as_excluded() -> None:
    assert Fetch("aa", where="/here").key == Fetch("aa", where="/there").key
    assert replace(JOIN, first=Fetch("aa", where="/here")).key == JOIN.key


def test_step_has_no_total_bytes_or_command_by_default() -> None:
    assert JOIN.total_bytes == 0
    assert JOIN.command is None


def test_mutable_field_raises_type_error() -> None:
    with pytest.raises(TypeError, match="a set has no canonical form"):
        _ = Fetch({"aa"}).key  # type: ignore[arg-type]


def test_inputs_are_found_only_for_declared_dependencies() -> None:
    inputs = Inputs({Fetch("aa").key: Path("/entry/files")})
    assert inputs[Fetch("aa", where="elsewhere")] == Path("/entry/files")
    with pytest.raises(KeyError, match="join-target is not a dependency"):
        inputs[JOIN]
