# SPDX-License-Identifier: Apache-2.0
"""The interface of a backend: one engine, and everything that depends on the engine.

A subpackage of this package registers by defining `BACKEND`; another distribution registers through an entry point in
the group `trtspec.backends`. Code outside a backend's subpackage never names it, and backends do not import each other.
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
from trtspec.core.doctor_check import DoctorCheck
from trtspec.core.registry import discover_all, find_extension
from trtspec.methods.base import DraftShape

if TYPE_CHECKING:
    from trtspec.backends.serving import ServingHooks
    from trtspec.store.files import FileReader

PACKAGE, ATTRIBUTE = "trtspec.backends", "BACKEND"


@dataclass(frozen=True)
class BackendOffer:
    """A backend's answer to `engine.backend: auto`: whether it can serve the recipe on this machine, and why."""

    takes: bool
    why: str


@dataclass(frozen=True)
class AutoSelection:
    """A backend's part in `engine.backend: auto`: backends are tried by ascending `rank`.

    `offer` takes the method's name and `engine.gpu`.
    """

    rank: int
    offer: Callable[[str, str | None], BackendOffer]


def _plain_serving() -> ServingHooks:
    from trtspec.backends.serving import ServingHooks

    return ServingHooks()


def _never(version: str, method: str) -> bool:
    return False


def _nothing(context: PlanContext) -> Iterable[Diagnostic]:
    return ()


@dataclass(frozen=True)
class Backend:
    """One engine. Functions that need heavy modules import them lazily, because `check` loads every backend.

    Fields:
        methods: returns the supported speculation methods and the engine's name for each.
        memory: returns the memory plan of each device.
        plan: returns the steps of an artifact.
        converts: the backend runs a converted checkpoint, which the torch engine can load in this process; otherwise it
            runs the source checkpoint unchanged.
        in_process: its engine is the torch engine, so measurements made in this process are valid for it.
        builds_engines: it runs TensorRT engines; migrations prefer to stay with such a backend.
        keeps_windows: sliding-window layers are honoured, so texts may be longer than the window.
        stretches: the kinds of RoPE scaling for which texts may exceed config.json's max_position_embeddings, up to the
            length that the scaling is made for.
        knobs: the supported keys of `speculation` among KNOBS of recipe.schema; `check` rejects the others.
        warms: `serving.warmup` is supported; `check` rejects it otherwise.
        maps_vocabularies: returns whether a version and method support a draft model with another vocabulary.
        devices, dtypes, defaults: the supported values of `engine.device`, `dtype` and `serving.defaults`.
        package: the required Python package, or None if the engine is part of trtspec.
        versions: returns the supported values of `engine.version`, the default last.
        check: yields the reasons why a recipe cannot be built or served.
        serving: returns how tritonserver runs the engine.
        build_arguments: returns the builder's arguments for a method and a draft shape, if the backend builds engines.
        probes: returns the checks of this machine for `doctor`.
        migrate: moves a recipe to one of the backend's versions.
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
    auto: AutoSelection | None = None
    build_arguments: Callable[[str, DraftShape], list[str]] | None = None
    probes: Callable[[], list[DoctorCheck]] = list
    migrate: Migrate | None = None

    def positions(self, config: ModelConfig) -> int:
        """Return the longest text of a model on this backend, in tokens."""
        return config.positions(self.stretches, keeps_windows=self.keeps_windows)


def backends() -> dict[str, Backend]:
    """Return all registered backends by name."""
    return discover_all(PACKAGE, ATTRIBUTE)


def find_backend(name: str) -> Backend:
    """Return a backend by name. Raise TrtspecError, with the registered names, if it does not exist."""
    backend: Backend = find_extension(PACKAGE, ATTRIBUTE, name, "backend")
    return backend


def backends_for_method(method: str) -> list[str]:
    """Return the names of the backends that support a method."""
    return [name for name, backend in backends().items() if method in backend.methods()]


def unconverted_hint(method: str) -> str:
    """Return a hint for a model that cannot be converted: the backends that run the method on the source checkpoint."""
    known = {name: find_backend(name) for name in backends_for_method(method)}
    taking = [name for name, each in known.items() if not (each.converts or each.builds_engines)]
    if not taking:
        return f"no backend runs {method} on an unconverted model"
    return f"engine.backend: {' or '.join(taking)} runs the model without conversion"


def engine_arguments(method: str, shape: DraftShape) -> list[str]:
    """Return the engine builder's arguments for a method, from the first backend that has any; else an empty list."""
    candidates = (each.build_arguments(method, shape) for each in backends().values() if each.build_arguments)
    return next((arguments for arguments in candidates if arguments), [])
