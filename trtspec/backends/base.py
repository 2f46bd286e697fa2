# SPDX-License-Identifier: Apache-2.0
"""What a backend is: one engine, and everything that depends on which one it is.

A folder of this package joins by defining `BACKEND`, a package of somebody else's by an entry point in the group
`trtspec.backends`. Nothing outside a backend's folder names it, and no backend knows another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trtspec.backends.artifact_plan import ArtifactPlan
from trtspec.backends.common.memory import MemoryPlan
from trtspec.backends.common.migration import Migrate
from trtspec.backends.context import PlanContext
from trtspec.checkpoints.model_config import ModelConfig
from trtspec.core.diagnostics import Diagnostic
from trtspec.core.doctor_check import Probe
from trtspec.core.registry import discover_all, find
from trtspec.methods.base import DraftShape

if TYPE_CHECKING:
    from trtspec.backends.serving import ServingHooks
    from trtspec.store.files import FileReader

PACKAGE, ATTRIBUTE = "trtspec.backends", "BACKEND"


@dataclass(frozen=True)
class Offer:
    """A backend's answer to `engine.backend: auto`: whether it takes the recipe on this machine, and why."""

    takes: bool
    why: str


@dataclass(frozen=True)
class Auto:
    """How a backend takes part in `engine.backend: auto`: those of the lowest `rank` are asked first.

    `offer` gets the method's name and `engine.gpu`.
    """

    rank: int
    offer: Callable[[str, str | None], Offer]


def _plain_serving() -> ServingHooks:
    from trtspec.backends.serving import ServingHooks

    return ServingHooks()


def _never(version: str, method: str) -> bool:
    return False


def _nothing(context: PlanContext) -> Iterable[Diagnostic]:
    return ()


@dataclass(frozen=True)
class Backend:
    """One engine. Functions that need more than data import it when they are called: `check` loads every backend.

    `methods` returns the speculation methods it runs and what it calls each; `memory` what serving takes on each
    device; `plan` the steps of an artifact. `converts` tells whether it runs a converted checkpoint, which the torch
    engine can open in this process, or the source as it is; `in_process` whether its engine is that very torch engine,
    so that what is measured in this process counts. `builds_engines` tells whether TensorRT engines are what it runs,
    which a recipe may want to stay with when it moves. `keeps_windows` tells whether layers with a sliding window keep
    to it, so that texts may be longer. `stretches` are the kinds of rotary scaling with which its engine takes texts
    beyond config.json's max_position_embeddings, up to the length that the scaling is made for. `knobs` are the keys of
    `speculation` that it honours, out of recipe.schema's KNOBS; `check` refuses the others, so none is ignored in
    silence. `warms` tells whether `serving.warmup` adds anything; `check` refuses it elsewhere. `devices` are the
    values of `engine.device` that it takes, `dtypes` those of `dtype`, `defaults` those of `serving.defaults`.
    `maps_vocabularies` tells of a version and a method whether it drafts with a model of another vocabulary. `package`
    is the Python package that it needs, None for one that comes with trtspec, and `versions` the versions that can be
    asked for, the default last. `check` yields
    what keeps a recipe from being built or served. `serving` says how tritonserver runs it. `build_arguments` returns
    what its builder is told of a method and a draft shape, for backends that build engines. `probes` says what of it is
    on this machine, for `doctor`; `migrate` moves a recipe to one of its versions.
    """

    summary: str
    methods: Callable[[], Mapping[str, str]]
    memory: Callable[[PlanContext], list[MemoryPlan]]
    plan: Callable[[PlanContext, FileReader], ArtifactPlan]
    converts: bool = True
    builds_engines: bool = False
    in_process: bool = False
    keeps_windows: bool = False
    stretches: frozenset[str] = frozenset()
    knobs: frozenset[str] = frozenset()
    warms: bool = False
    maps_vocabularies: Callable[[str, str], bool] = _never
    devices: tuple[str, ...] = ("gpu",)
    dtypes: tuple[str, ...] = ("auto", "float16", "bfloat16")
    defaults: tuple[str, ...] = ("trtspec",)
    package: str | None = None
    versions: Callable[[], list[str]] = lambda: [""]
    check: Callable[[PlanContext], Iterable[Diagnostic]] = _nothing
    serving: Callable[[], ServingHooks] = _plain_serving
    auto: Auto | None = None
    build_arguments: Callable[[str, DraftShape], list[str]] | None = None
    probes: Callable[[], list[Probe]] = list
    migrate: Migrate | None = None

    def positions(self, config: ModelConfig) -> int:
        """Return how long texts of a model may be on this backend."""
        return config.positions(self.stretches, keeps_windows=self.keeps_windows)


def backends() -> dict[str, Backend]:
    """Return every backend there is, by name."""
    return discover_all(PACKAGE, ATTRIBUTE)


def find_backend(name: str) -> Backend:
    """Return a backend by name; an unknown one is an error that lists the known ones."""
    backend: Backend = find(PACKAGE, ATTRIBUTE, name, "backend")
    return backend


def running(method: str) -> list[str]:
    """Return the names of the backends that run a method."""
    return [name for name, backend in backends().items() if method in backend.methods()]


def as_it_is(method: str) -> str:
    """Return which backends run a method with a checkpoint as it is, as a hint for one that cannot be converted."""
    known = {name: find_backend(name) for name in running(method)}
    taking = [name for name, each in known.items() if not (each.converts or each.builds_engines)]
    if not taking:
        return f"no backend that takes a model as it is runs {method}"
    return f"engine.backend: {' or '.join(taking)} takes the model as it is"


def engine_arguments(method: str, shape: DraftShape) -> list[str]:
    """Return what the builder of engines is told of a method, whichever backend has one; empty where none knows it."""
    told = (each.build_arguments(method, shape) for each in backends().values() if each.build_arguments)
    return next((arguments for arguments in told if arguments), [])
