# SPDX-License-Identifier: Apache-2.0
"""The interface of a backend (an engine with everything that depends on it), and the choice of a recipe's backend.

A subpackage of this package registers by defining `BACKEND`; another distribution registers through an entry point in
the group `trtspec.backends`. Code outside a backend's subpackage never names it, and backends do not import each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
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
from trtspec.recipe.resolve import ResolvedRecipe
from trtspec.recipe.schema import Engine, Recipe

if TYPE_CHECKING:
    from trtspec.store.files import FileReader
    from trtspec.store.step import Step

Kind = Literal["kept", "changed", "dropped", "open"]
PACKAGE, ATTRIBUTE = "trtspec.backends", "BACKEND"
AUTO = "auto"
SHARED_MODELS = Path(__file__).parent / "common" / "models"  # configurations that the models of several backends share


@dataclass(frozen=True)
class ArtifactPlan:
    """The steps that build an artifact, by the directory of their output in it ("" is the artifact's root).

    Attributes:
        tools, gpu: the build tools and the device that the manifest records.
        notes: remarks for users.
        facts: remarks in machine-readable form, by key of `plan --json`.
        problems: returns error messages of the installed tools; slow, so only builds call it.
        lacks: reasons why this machine cannot run a step, by the step's directory.
        devices: ids of the GPUs that steps may use.
        keys_are_final: false if keys depend on something that only a build determines, such as the digest of a tag.
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
    """The outcome for one key of a migrated recipe; "open" means that the user must set a value before a build."""

    kind: Kind
    path: str
    why: str


@dataclass
class Migration:
    """A recipe being migrated to another version: the new recipe as plain values, and a list of changes by key."""

    version: str
    document: dict[str, Any]
    changes: list[KeyChange] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        return all(change.kind != "open" for change in self.changes)

    def note(self, kind: Kind, path: str, why: str) -> None:
        self.changes.append(KeyChange(kind, path, why))

    def drop(self, path: str, why: str) -> None:
        """Remove a key, if present, and record the change."""
        *sections, key = path.split(".")
        section: Any = self.document
        for name in sections:
            section = section.get(name, {})
        if key in section:
            del section[key]
            self.note("dropped", path, why)

    def drop_empty(self, *names: str) -> None:
        """Remove the named sections of `engine` that are empty."""
        engine = self.document["engine"]
        for name in names:
            if name in engine and not engine[name]:
                del engine[name]

    def keep(self, *sections: str) -> None:
        """Record that the named sections are unchanged, if they are present."""
        for section in sections:
            if section in self.document:
                self.note("kept", section, "unchanged")


# Converts the recipe to the version in `migration.version` and records the change of each key.
Migrate = Callable[[Migration, Recipe], None]


@dataclass(frozen=True)
class AutoSelection:
    """How a backend takes part in `engine.backend: auto`. Backends are tried by ascending `rank`.

    `offer` is called with the method's name and `engine.gpu`. It returns whether the backend can be used on this
    machine, and the reason.
    """

    rank: int
    offer: Callable[[str, str | None], tuple[bool, str]]


@dataclass(frozen=True)
class Backend:
    """An engine and its functions; those with heavy imports are `deferred`, because `check` loads all backends.

    Attributes:
        methods: returns the supported speculation methods and the engine's name for each.
        memory: returns the memory plan of each device.
        plan: returns the steps of an artifact.
        runs: methods whose output a test compares on the real engine; all methods if `in_process`.
        parses: methods whose arguments a test passes to the engine's own parser.
        converts: true if the backend runs a converted checkpoint, which the torch engine can also load; otherwise it
            runs the source checkpoint unchanged.
        builds_engines: true if it runs TensorRT engines; migrations prefer to stay with such a backend.
        in_process: true if the engine is the torch engine, so that measurements made in this process are valid for it.
        keeps_windows: true if sliding windows are applied, so that texts may be longer than the window.
        stretches: kinds of RoPE scaling with which texts may exceed config.json's max_position_embeddings, up to the
            length for which the scaling was made.
        knobs: supported keys of `speculation` among KNOBS in recipe.schema.
        warms: true if `serving.warmup` is supported.
        maps_vocabularies: returns whether a version and method support a draft model with another vocabulary.
        devices, dtypes, defaults: supported values of `engine.device`, `dtype` and `serving.defaults`.
        edits_logits: true if the default `model` also applies penalties and forbidden tokens, besides sampling options.
        structured_output: "always" if requests may have a grammar, "optional" if it needs `serving.structured_output`.
        package: the required Python package, or None if the engine is part of trtspec.
        versions: returns the known values of `engine.version`, the default last.
        nearest_versions: true if an unknown version is planned like the nearest known one of its minor version.
        check: yields reasons why a recipe cannot be built or served.
        rewritten: returns the patterns of the file names that a build may change or add in the copied checkpoint of a
            role; `verify` expects all other files to equal the source's.
        serving: returns the hooks for running the engine in tritonserver.
        build_arguments: returns the arguments of the engine builder for a method and a draft shape.
        probes: returns the backend's checks of this machine for `doctor`.
        migrate: converts a recipe to one of the backend's versions.
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
    edits_logits: bool = False
    structured_output: Literal["never", "optional", "always"] = "never"
    package: str | None = None
    versions: Callable[[], list[str]] = lambda: [""]
    nearest_versions: bool = False
    check: Callable[[PlanContext], Iterable[Diagnostic]] = lambda context: ()
    rewritten: Callable[[ResolvedRecipe, str], tuple[str, ...]] = lambda recipe, role: ()
    serving: Callable[[], ServingHooks] = ServingHooks
    auto: AutoSelection | None = None
    build_arguments: Callable[[str, DraftShape], list[str]] | None = None
    probes: Callable[[], list[DoctorCheck]] = list
    migrate: Migrate | None = None

    def positions(self, config: ModelConfig) -> int:
        """Return the maximum text length of a model on this backend, in tokens."""
        return config.positions(self.stretches, keeps_windows=self.keeps_windows)


def methods_of_releases(releases: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Return the union of the methods of all releases; `check` reports a method that the chosen release lacks."""
    return {"none": ""} | {ours: theirs for methods in releases for ours, theirs in methods.items()}


def deferred(target: str) -> Callable[..., Any]:
    """Return a function that calls "module:name"; the module is imported at the first call."""
    module, _, name = target.partition(":")

    def call(*arguments: Any) -> Any:
        return getattr(import_module(module), name)(*arguments)

    return call


def backends() -> dict[str, Backend]:
    return discover_all(PACKAGE, ATTRIBUTE)


def needs_gpu(engine: Engine) -> bool:
    """Return True if a recipe's engine needs a GPU; with backend `auto`, it does if the recipe names a GPU."""
    if engine.backend == AUTO:
        return engine.gpu is not None
    return engine.device != "cpu" and not find_backend(engine.backend).in_process


def find_backend(name: str) -> Backend:
    """Return a backend by name; raise TrtspecError, which lists the registered names, if it does not exist."""
    backend: Backend = find_extension(PACKAGE, ATTRIBUTE, name, "backend")
    return backend


def backends_for_method(method: str) -> list[str]:
    return [name for name, backend in backends().items() if method in backend.methods()]


def unconverted_hint(method: str) -> str:
    """Return a hint for a model that cannot be converted: the backends that run the method on its source."""
    known = {name: find_backend(name) for name in backends_for_method(method)}
    taking = [name for name, each in known.items() if not (each.converts or each.builds_engines)]
    if not taking:
        return f"no backend runs {method} on an unconverted model"
    return f"engine.backend: {' or '.join(taking)} runs the model without conversion"


def engine_arguments(method: str, shape: DraftShape) -> list[str]:
    """Return the engine builder's arguments for a method, from the first backend that has any, or an empty list."""
    candidates = (each.build_arguments(method, shape) for each in backends().values() if each.build_arguments)
    return next((arguments for arguments in candidates if arguments), [])


def choose_backend(engine: Engine, method: str) -> SelectedBackend:
    """Return the backend for a recipe's `engine`; raise TrtspecError for an unknown backend or version."""
    name, why = (engine.backend, "the recipe sets it") if engine.backend != AUTO else _auto(method, engine.gpu)
    return SelectedBackend(name, why, choose_version(find_backend(name), engine.version))


def in_process_backend() -> tuple[str, Backend]:
    """Return the name and the backend of the torch engine, which runs in this process."""
    return next((name, backend) for name, backend in backends().items() if backend.in_process)


def _auto(method: str, gpu: str | None) -> tuple[str, str]:
    """Return the first built-in backend, by rank, that can be used, and the reason.

    If the reason is empty, return instead why the previous backend cannot be used.
    """
    candidates = [(each.auto, name) for name, each in discover(PACKAGE, ATTRIBUTE).items() if each.auto]
    reason = ""
    for auto, name in sorted(candidates, key=lambda pair: pair[0].rank):
        accepts, why = auto.offer(method, gpu)
        if accepts:
            return name, why or reason
        reason = why
    raise TrtspecError("no backend supports the recipe", hint="set engine.backend")


def stand_in_version(backend: Backend, version: str) -> str | None:
    """Return the known version that is nearest to an unknown one, or None for a known or unsupported version."""
    versions = backend.versions()
    unknown = backend.nearest_versions and version not in versions
    return nearest_version(version, versions) if unknown else None


def choose_version(backend: Backend, wanted: str | None) -> str:
    """Return the backend's version for a recipe's `engine.version`; raise TrtspecError for an unsupported version.

    Without `engine.version`, the installed version is used, or else the newest known one. A version without a patch
    number, such as 1.2, selects its newest patch release. A version that has a `stand_in_version` is returned
    unchanged.
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
