# SPDX-License-Identifier: Apache-2.0
"""Select the backend and version of a recipe during planning; the manifest records the choice and the reason."""

from __future__ import annotations

from trtspec.backends.base import ATTRIBUTE, PACKAGE, Backend, backends, find_backend
from trtspec.backends.context import SelectedBackend
from trtspec.core.errors import TrtspecError
from trtspec.core.processes import installed_version
from trtspec.core.registry import discover
from trtspec.recipe.schema import Engine

AUTO = "auto"


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
        offer = auto.offer(method, gpu)
        if offer.takes:
            return name, offer.why or reason
        reason = offer.why
    raise TrtspecError("no backend supports the recipe", hint="set engine.backend")


def choose_version(backend: Backend, wanted: str | None) -> str:
    """Return the backend's version for a recipe's `engine.version`. Raise TrtspecError for an unsupported version.

    The default is the installed version, else the newest supported one. A version without a patch number, such as 1.2,
    selects its newest patch release.
    """
    versions = backend.versions()
    if wanted is None:
        installed = installed_version(backend.package)
        return installed if installed in versions else versions[-1]
    found = [each for each in versions if each == wanted or each.startswith(f"{wanted}.")]
    if not found:
        supported = ", ".join(filter(None, versions))
        raise TrtspecError(
            f"unsupported version {wanted}"
            if supported
            else "this engine is part of trtspec and does not have a version",
            hint=f"supported: {supported}" if supported else "remove it",
        )
    return found[-1]
