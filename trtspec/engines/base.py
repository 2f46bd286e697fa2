# SPDX-License-Identifier: Apache-2.0
"""What runs a checkpoint, which one a recipe gets, and what each has to say about a recipe."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from trtspec.checkpoint.model_config import ModelConfig
from trtspec.checkpoint.source import SourceFacts
from trtspec.engines.memory import MemoryPlan
from trtspec.errors import TrtspecError
from trtspec.methods.base import DraftPart, Extent, Method, Options
from trtspec.recipe.schema import Recipe
from trtspec.registry import discover


@dataclass(frozen=True)
class Storage:
    """How a model's weights and KV cache are stored, whoever quantized them: "none", "fp8" or "fp8_rowwise"."""

    weights: str = "none"
    kv_cache: str = "none"


@dataclass(frozen=True)
class Case:
    """A recipe with everything that its checkpoints, method and options tell: what an engine is asked about.

    `target` is None for an architecture that no family describes, which only engines that convert nothing take;
    `draft` is a draft model, `part` what drafts from inside the target. `version` is the engine's, "" where it comes
    with trtspec. `sources` are the checkpoints as they lie, by role ("target", "draft"): what engines that convert
    nothing run.
    """

    recipe: Recipe
    version: str
    method: Method
    options: Options
    extent: Extent
    target: ModelConfig | None
    target_storage: Storage = Storage()
    draft: ModelConfig | None = None
    draft_storage: Storage = Storage()
    part: DraftPart | None = None
    sources: Mapping[str, SourceFacts] = field(default_factory=dict)


@dataclass(frozen=True)
class Objection:
    """What an engine has against a recipe: the dotted `path` that it is about, a problem's code, words and hint.

    `source` is where the rule was read, as repository:path@commit or an issue.
    """

    path: str
    code: str
    message: str
    hint: str | None = None
    severity: Literal["error", "warning"] = "error"
    source: str = ""


def _nothing(case: Case) -> Iterable[Objection]:
    return ()


@dataclass(frozen=True)
class Backend:
    """One engine; a module or package of this folder joins by defining it as `BACKEND`.

    `package` is the Python package it needs to build or run, None for one that comes with trtspec. `converts` tells
    whether it runs a converted checkpoint, or the source as it is. `versions` returns the engine's versions that can
    be asked for, the default last; `keeps_windows` tells whether layers with a sliding window keep to it, so that texts
    may be longer; `objections` yields what keeps a recipe from being built or served, and `memory`
    returns what serving takes on each device.
    """

    summary: str
    package: str | None
    memory: Callable[[Case], list[MemoryPlan]]
    converts: bool = True
    keeps_windows: bool = False
    versions: Callable[[], list[str]] = lambda: [""]
    objections: Callable[[Case], Iterable[Objection]] = _nothing


def backends() -> dict[str, Backend]:
    """Return the backends this version has, by name."""
    return discover("trtspec.engines", "BACKEND")


def choose_backend(wanted: str, method: Method | None, gpu: str | None) -> tuple[str, str]:
    """Return (backend, why) for a recipe's `engine.backend`, one of `backends()` or "auto".

    The choice is made while planning and recorded; nothing falls back at run time.
    """
    if wanted != "auto":
        return wanted, "the recipe asks for it"
    installed = _installed("tensorrt_llm")
    if not installed:
        return "embedded", "TensorRT-LLM is not installed here"
    if gpu is None:
        return "embedded", "TensorRT-LLM is installed, but the recipe names no engine.gpu to build for"
    # The last release with trtllm-build is 1.2.1 (NVIDIA/TensorRT-LLM pull 15918).
    has_builder = tuple(int(part) for part in installed.split(".")[:2]) < (1, 3)
    name = "tensorrt_llm" if has_builder and (method is None or "tensorrt_llm" in method.engines) else "llmapi"
    if method and name not in method.engines:
        return "embedded", f"TensorRT-LLM {installed} is installed, but does not know the method"
    return name, f"TensorRT-LLM {installed} is installed"


def choose_version(backend: Backend, wanted: str | None) -> str:
    """Return the engine's version for a recipe's `engine.version`; TrtspecError where the backend has no such one.

    Unless the recipe says, it is the one that is installed here, else the newest. A version without a patch number, as
    1.2, is the newest of its kind.
    """
    versions = backend.versions()
    if wanted is None:
        installed = _installed(backend.package)
        return installed if installed in versions else versions[-1]
    found = [each for each in versions if each == wanted or each.startswith(f"{wanted}.")]
    if not found:
        known = ", ".join(filter(None, versions))
        raise TrtspecError(
            f"nothing is known of version {wanted}" if known else "this engine comes with trtspec and has no version",
            hint=f"known: {known}" if known else "remove it",
        )
    return found[-1]


def _installed(package: str | None) -> str:
    """Return the version of a package that is installed here, "" where none is."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package) if package else ""
    except PackageNotFoundError:
        return ""
