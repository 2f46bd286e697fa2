# SPDX-License-Identifier: Apache-2.0
"""What the commands were asked for, and where they show how the work goes on."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from trtspec.bench.profile.candidate import OnProgress
from trtspec.store.executor import Observer

if TYPE_CHECKING:
    from trtspec.bench.load.runner import Server


@dataclass(frozen=True)
class Limits:
    """How much is tried; see the command's options."""

    samples: int
    max_tokens: int
    max_draft_len: int
    concurrency: int
    seed: int


@dataclass(frozen=True)
class Asked:
    """What the command was asked for."""

    recipe: Path
    overrides: list[str]
    prompts: Path | None
    drafts: list[str] | None
    methods: list[str] | None
    limits: Limits


@dataclass(frozen=True)
class Servers:
    """A running server, one without speculation (None for the same, asked to draft nothing), and what it serves.

    `root` is its artifact, None where only an address is known; `others` draft other lengths for the same target.
    """

    served: Server
    baseline: Server | None
    root: Path | None
    others: Sequence[Server] = ()


class Bars(Observer, Protocol):
    """Shows how a build goes on, from the downloads and digests of its sources on."""

    def preparing(self, what: str, done: int, total: int) -> None:
        """So many bytes of a source are here."""

    def reading(self, done: int, total: int) -> None:
        """So many bytes of sources are hashed."""


@dataclass(frozen=True)
class Screen:
    """Shows how the work goes on: builds, and what is counted."""

    building: Callable[[], AbstractContextManager[Bars]]
    counting: Callable[[], AbstractContextManager[OnProgress]]
