# SPDX-License-Identifier: Apache-2.0
"""The interface of a backend, one engine and everything that depends on it, and the selection of a recipe's backend.

A subpackage of this package registers by defining `BACKEND`; another distribution registers through an entry point in
the group `trtspec.backends`. Code outside a backend's subpackage never names it, and backends do not import each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from trtspec.backends.common.memory import MemoryPlan
from trtspec.backends.context import PlanContext, SelectedBackend
from trtspec.backends.serving import ServingHooks
from trtspec.checkpoints.model_config import ModelConfig
from trtspec.core.diagnostics import Diagnostic
from trtspec.core.errors import TrtspecError
from trtspec.core.installation import DoctorCheck, installed_version
from trtspec.core.registry import discover, discover_all, find_extension
from trtspec.core.versions import nearest_version
from trtspec.methods.base import DraftShape
from trtspec.recipe.schema import Engine, Recipe

if TYPE_CHECKING:
    from trtspec.store.files import FileReader
    from trtspec.store.step import Step

Kind = Literal["kept", "changed", "dropped", "open"]
PACKAGE, ATTRIBUTE = "trtspec.backends", "BACKEND"
AUTO = "auto"


@dataclass(frozen=True)
class ArtifactPlan:
    """The steps of an artifact, keyed by the directory of their files in it ("" is the artifact's root).

    `tools` and `gpu` are the builder and device that the manifest records. `notes` are remarks for users, and `facts`
    their machine-readable form, by key of `plan --json`. `problems` returns the objections of the installed tools; it
    is slow, and only builds call it. `lacks` maps the directory of a step to the reason why this machine cannot run
    the step. `devices` are the devices that steps may use. `keys_are_final` is False if keys depend on something that
    only a build finds out, such as the digest of an image's tag.
    """

    steps: Mapping[str, Step]
    tools: Mapping[str, str] = field(default_factory=dict)
    gpu: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    problems: Callable[[], list[str]] = list
    lacks: Mapping[str, Diagnostic] = field(default_factory=dict)
    devices: tuple[str, ...] = ()
    keys_are_final: bool = True


@dataclass(frozen=True)
class KeyChange:
    """The result for one key; "open" requires a value from the user before the recipe can be built."""

    kind: Kind
    path: str
    why: str


@dataclass
class Migration:
    """The recipe for the other version as plain values, and the change of each key."""

    version: str
    document: dict[str, Any]
    changes: list[KeyChange] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        return all(change.kind != "open" for change in self.changes)

    def note(self, kind: Kind, path: str, why: str) -> None:
        self.changes.append(KeyChange(kind, path, why))

    def drop(self, path: str, why: str) -> None:
        """Remove a key if it is present, and record the change."""
        *sections, key = path.split(".")
        section: Any = self.document
        for name in sections:
            section = section.get(name, {})
        if key in section:
            del section[key]
            self.note("dropped", path, why)

    def drop_empty(self, *names: str) -> None:
        """Remove the sections of `engine` in which nothing is left."""
        engine = self.document["engine"]
        for name in names:
            if name in engine and not engine[name]:
                del engine[name]

    def keep(self, *sections: str) -> None:
        """Record that these sections stay as they are, if they are present."""
        for section in sections:
            if section in self.document:
                self.note("kept", section, "unchanged")


# Converts the recipe to the backend's version `migration.version` and records the change of each key.
Migrate = Callable[[Migration, Recipe], None]


@dataclass(frozen=True)
class AutoSelection:
    """A backend's part in `engine.backend: auto`: backends are tried by ascending `rank`.

    `offer` takes the method's name and `engine.gpu`, and returns whether the backend can serve them here, and why.
    """

    rank: int
    offer: Callable[[str, str | None], tuple[bool, str]]


@dataclass(frozen=True)
class Backend:
    """One engine. Functions that need heavy modules are `deferred`, because `check` loads every backend.

    Fields:
        methods: returns the supported speculation methods and the engine's name for each.
        runs: the methods whose text a test compares on the real engine; all of them if `in_process`.
        parses: the methods whose arguments the engine's own parser accepts in a test.
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
        versions: returns the known values of `engine.version`, the default last.
        nearest_versions: other versions are planned as the nearest known one of their minor version, with a warning.
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
    runs: frozenset[str] = frozenset()
    parses: frozenset[str] = frozenset()
    converts: bool = True
    builds_engines: bool = False
    in_process: bool = False
    keeps_windows: bool = False
    stretches: frozenset[str] = frozenset()
    knobs: frozenset[str] = frozenset()
    warms: bool = False
    maps_vocabularies: Callable[[str, str], bool] = lambda version, method: False
    devices: tuple[str, ...] = ("gpu",)
    dtypes: tuple[str, ...] = ("auto", "float16", "bfloat16")
    defaults: tuple[str, ...] = ("trtspec",)
    package: str | None = None
    versions: Callable[[], list[str]] = lambda: [""]
    nearest_versions: bool = False
    check: Callable[[PlanContext], Iterable[Diagnostic]] = lambda context: ()
    serving: Callable[[], ServingHooks] = ServingHooks
    auto: AutoSelection | None = None
    build_arguments: Callable[[str, DraftShape], list[str]] | None = None
    probes: Callable[[], list[DoctorCheck]] = list
    migrate: Migrate | None = None

    def positions(self, config: ModelConfig) -> int:
        """Return the longest text of a model on this backend, in tokens."""
        return config.positions(self.stretches, keeps_windows=self.keeps_windows)


def methods_of_releases(releases: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return the methods of a backend whose releases have these; `check` rejects one that the chosen release lacks."""
    return {"none": ""} | {ours: theirs for methods in releases for ours, theirs in methods.items()}


def deferred(target: str) -> Callable[..., Any]:
    """Return a function that calls the function "module:name", whose module is imported by the first call."""
    module, _, name = target.partition(":")

    def call(*arguments: Any) -> Any:
        return getattr(import_module(module), name)(*arguments)

    return call


def backends() -> dict[str, Backend]:
    return discover_all(PACKAGE, ATTRIBUTE)


def find_backend(name: str) -> Backend:
    """Return a backend by name. Raise TrtspecError, with the registered names, if it does not exist."""
    backend: Backend = find_extension(PACKAGE, ATTRIBUTE, name, "backend")
    return backend


def backends_for_method(method: str) -> list[str]:
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


def choose_backend(engine: Engine, method: str) -> SelectedBackend:
    """Return the backend for a recipe's `engine`. Raise TrtspecError for an unknown backend or version."""
    name, why = (engine.backend, "the recipe sets it") if engine.backend != AUTO else _auto(method, engine.gpu)
    return SelectedBackend(name, why, choose_version(find_backend(name), engine.version))


def in_process_backend() -> tuple[str, Backend]:
    """Return the name and the backend of the engine that runs in this process."""
    return next((name, backend) for name, backend in backends().items() if backend.in_process)


def _auto(method: str, gpu: str | None) -> tuple[str, str]:
    """Return the first built-in backend that accepts, by rank; if its reason is empty, use the last rejection's."""
    candidates = [(each.auto, name) for name, each in discover(PACKAGE, ATTRIBUTE).items() if each.auto]
    reason = ""
    for auto, name in sorted(candidates, key=lambda pair: pair[0].rank):
        accepts, why = auto.offer(method, gpu)
        if accepts:
            return name, why or reason
        reason = why
    raise TrtspecError("no backend supports the recipe", hint="set engine.backend")


def stand_in_version(backend: Backend, version: str) -> str | None:
    """Return the known version as which an unknown one is planned; None for a known or an unsupported version."""
    versions = backend.versions()
    unknown = backend.nearest_versions and version not in versions
    return nearest_version(version, versions) if unknown else None


def choose_version(backend: Backend, wanted: str | None) -> str:
    """Return the backend's version for a recipe's `engine.version`. Raise TrtspecError for an unsupported version.

    The default is the installed version, else the newest supported one. A version without a patch number, such as 1.2,
    selects its newest patch release. A version with `stand_in_version` is returned unchanged.
    """
    versions = backend.versions()
    if wanted is None:
        installed = installed_version(backend.package) or ""
        return installed if installed in versions or stand_in_version(backend, installed) else versions[-1]
    found = [each for each in versions if each == wanted or each.startswith(f"{wanted}.")]
    if found or stand_in_version(backend, wanted):
        return found[-1] if found else wanted
    if supported := ", ".join(filter(None, versions)):
        raise TrtspecError(f"unsupported version {wanted}", hint=f"supported: {supported}")
    raise TrtspecError("this engine is part of trtspec and does not have a version", hint="remove it")
