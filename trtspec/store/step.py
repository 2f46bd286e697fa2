# SPDX-License-Identifier: Apache-2.0
"""What a step is: a frozen value that says everything its output depends on, and how to make that output."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Protocol

from trtspec.store.digest import digest_of, key_fields


class Stopped(Exception):
    """The run that a step belongs to has failed elsewhere, so nobody waits for its output; no user sees it raised."""


class Progress(Protocol):
    """Where a running step says how far it is, and learns that it is no longer wanted."""

    def advance(self, n_bytes: int) -> None:
        """Count `n_bytes` more of the step's `total_bytes` as done; raises Stopped where the step is to end."""

    def resume(self, n_bytes: int) -> None:
        """Count bytes as done that an earlier run has done: nothing is read for them; raises as `advance` does."""

    def say(self, text: str) -> None:
        """Tell people in words what is being done."""


class Inputs:
    """What a step is given: the directories with the files of its dependencies, `inputs[self.source]`, and devices.

    `devices` are the step's alone while it runs: as many as it has asked for, or all where there are fewer.
    """

    def __init__(self, directories: Mapping[str, Path], devices: tuple[str, ...] = ()) -> None:
        self._directories = directories
        self.devices = devices

    def __getitem__(self, step: Step) -> Path:
        if step.key not in self._directories:
            raise KeyError(f"{step.name} is not among the dependencies of the step that asks for it")
        return self._directories[step.key]


def notes_of(out: Path) -> Path:
    """Return the directory beside a resumable step's `out` for its notes; they are not part of its output."""
    return out.parent / "notes"


class Step(ABC):
    """One unit of work; a subclass is a frozen dataclass, and holds to this contract.

    * Its fields are its whole input: plain data, enum members, frozen dataclasses of them, other steps and tuples of
      steps. Whatever else changes the bytes it writes (a file's content, a tool's version) is in a field as a digest
      or a text. `field(metadata={"key": False})` marks what does not change them, such as where a source lies.
    * `VERSION` is raised when the same fields would write different bytes.
    * `run` writes regular files and directories below `out`, which exists and is empty, and nothing anywhere else.
      Its files become read-only, so it hard-links nothing there that is not its own; empty directories and
      executable bits are lost. It never changes what it finds in its inputs.
    * `run` may return the SHA-256 of files that it hashed while it wrote them, by path below `out`: the store does not
      read those again. Nothing is written to such a file afterwards.
    * `run` raises a TrtspecError for what a user can act on; the store deletes `out` after any exception.
    * A `RESUMABLE` step finds in `out` what an earlier run of the same key left, however that run ended, and goes on
      from there; what it has to remember for that it writes to `notes_of(out)`. The store keeps both until the step's
      output is complete. What it writes to `out` does not depend on interruptions.
    """

    VERSION: ClassVar[int]
    RESUMABLE: ClassVar[bool] = False

    @property
    @abstractmethod
    def name(self) -> str:
        """What people call this step: `convert-target`."""

    @abstractmethod
    def run(self, out: Path, inputs: Inputs, progress: Progress) -> Mapping[str, str] | None:
        """Write the step's files below `out`; return the digests of those that were hashed meanwhile."""

    @property
    def total_bytes(self) -> int:
        """How many bytes `run` will report to its progress; 0 where that is unknown or nothing is moved."""
        return 0

    @property
    def kind(self) -> str:
        """What steps have in common that move bytes about as fast as each other."""
        return type(self).__qualname__

    @property
    def output_bytes(self) -> int:
        """How many bytes `run` will write, at least; 0 where they are few."""
        return 0

    @property
    def num_devices(self) -> int:
        """How many devices `run` works on; a step that has some of its own may run beside others."""
        return 0

    @property
    def command(self) -> tuple[str, ...] | None:
        """The command line that `run` runs, or None where it runs none."""
        return None

    @property
    def dependencies(self) -> tuple[Step, ...]:
        """The steps among the fields, in the order of the fields."""
        found: list[Step] = []
        for field in fields(self):  # type: ignore[arg-type]  # every subclass is a dataclass
            value = getattr(self, field.name)
            found += [each for each in (value if isinstance(value, tuple) else (value,)) if isinstance(each, Step)]
        return tuple(found)

    @property
    def key_parts(self) -> dict[str, str]:
        """What the key is made of: a digest of each field by its name, for people who ask why two keys differ."""
        digests = {name: digest_of("trtspec.field/1", _by_key(value)) for name, value in key_fields(self).items()}
        return {"kind of step": f"{type(self).__qualname__}/{self.VERSION}", **digests}

    @cached_property
    def key(self) -> str:
        """The identity of the step's output: its class, version and fields, with the keys of the steps among them."""
        identity = {name: _by_key(value) for name, value in key_fields(self).items()}
        return digest_of("trtspec.step/1", (type(self).__qualname__, self.VERSION, identity))


@dataclass(frozen=True)
class _Upstream:
    key: str


def _by_key(value: object) -> object:
    if isinstance(value, Step):
        return _Upstream(value.key)
    return tuple(map(_by_key, value)) if type(value) is tuple else value
