# SPDX-License-Identifier: Apache-2.0
"""Which backend a recipe gets, in which version, and why: decided while planning, and recorded in the manifest."""

from __future__ import annotations

from trtspec.backends.base import ATTRIBUTE, PACKAGE, Backend, backends, find_backend
from trtspec.backends.context import Choice
from trtspec.core.errors import TrtspecError
from trtspec.core.processes import installed_version
from trtspec.core.registry import discover
from trtspec.recipe.schema import Engine

AUTO = "auto"


def choose(engine: Engine, method: str) -> Choice:
    """Return the backend that a recipe's `engine` gets; raises TrtspecError for one that nobody brings."""
    name, why = (engine.backend, "the recipe asks for it") if engine.backend != AUTO else _auto(method, engine.gpu)
    return Choice(name, why, choose_version(find_backend(name), engine.version))


def in_process() -> tuple[str, Backend]:
    """Return the backend whose engine runs in this process, and its name."""
    return next((name, backend) for name, backend in backends().items() if backend.in_process)


def _auto(method: str, gpu: str | None) -> tuple[str, str]:
    """Ask the backends of ours that can be chosen, in order; the last takes everything, for the others' last reason."""
    asked = [(each.auto, name) for name, each in discover(PACKAGE, ATTRIBUTE).items() if each.auto]
    reason = ""
    for auto, name in sorted(asked, key=lambda pair: pair[0].rank):
        offer = auto.offer(method, gpu)
        if offer.takes:
            return name, offer.why or reason
        reason = offer.why
    raise TrtspecError("no backend takes the recipe", hint="name one under engine.backend")


def choose_version(backend: Backend, wanted: str | None) -> str:
    """Return the backend's version for a recipe's `engine.version`; TrtspecError where it has no such one.

    Unless the recipe says, it is the one that is installed here, else the newest. A version without a patch number, as
    1.2, is the newest of its kind.
    """
    versions = backend.versions()
    if wanted is None:
        installed = installed_version(backend.package)
        return installed if installed in versions else versions[-1]
    found = [each for each in versions if each == wanted or each.startswith(f"{wanted}.")]
    if not found:
        known = ", ".join(filter(None, versions))
        raise TrtspecError(
            f"nothing is known of version {wanted}" if known else "this engine comes with trtspec and has no version",
            hint=f"known: {known}" if known else "remove it",
        )
    return found[-1]
