# SPDX-License-Identifier: Apache-2.0
"""Find extensions by scanning a folder: one file is one extension, and no list anywhere needs an edit.

A module of the folder joins by defining the asked-for attribute; modules without it (base classes) do not. Installed
packages join by entry points, whose group is the folder's dotted name ("trtspec.families"); they are looked up only
where our own do not do, because asking every installed package takes long.
"""

from __future__ import annotations

import importlib
import pkgutil
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from trtspec.errors import TrtspecError


@cache
def discover(package: str, attribute: str) -> dict[str, Any]:
    """Return {module name: value of `attribute`} over the modules of `package`, sorted by name."""
    folder = importlib.import_module(package)
    found = {}
    for info in sorted(pkgutil.iter_modules(folder.__path__), key=lambda info: info.name):
        module = importlib.import_module(f"{package}.{info.name}")
        if hasattr(module, attribute):
            found[info.name] = getattr(module, attribute)
    return found


@cache
def discover_all(package: str, attribute: str) -> dict[str, Any]:
    """Return what `discover` does and behind it what installed packages bring, sorted by name.

    Raises TrtspecError for a name that is taken, and for an entry point that cannot be loaded.
    """
    from importlib.metadata import entry_points

    found = dict(discover(package, attribute))
    for entry in sorted(entry_points(group=package), key=lambda entry: entry.name):
        brought_by = f"{entry.dist.name} {entry.dist.version}" if entry.dist else "an installed package"
        where = f"entry point {entry.name!r} of {brought_by} in the group {package}"
        if entry.name in found:
            raise TrtspecError(f"{entry.name!r} is there already", where=where, hint="give it a name of its own")
        try:
            found[entry.name] = entry.load()
        except (ImportError, AttributeError) as error:
            hint = "repair or uninstall that package"
            raise TrtspecError(f"cannot load {entry.value}: {error}", where=where, hint=hint) from error
    return found


@cache
def names(package: str) -> tuple[str, ...]:
    """Return the names in a folder, installed packages' among them, without loading one or the folder's parents."""
    from importlib.metadata import entry_points

    top, *rest = package.split(".")
    folders = [str(Path(root, *rest)) for root in importlib.import_module(top).__path__]
    own = [info.name for info in pkgutil.iter_modules(folders)]
    return tuple(sorted({*own, *(entry.name for entry in entry_points(group=package))}))


def version_of(package: str, name: str) -> str:
    """Return which installed package brings an extension, with its version; "" for one of ours."""
    from importlib.metadata import entry_points

    for entry in entry_points(group=package, name=name):
        return f"{entry.dist.name} {entry.dist.version}" if entry.dist else "unknown"
    return ""


def find(package: str, attribute: str, name: str, what: str) -> Any:
    """Return one extension by name; an unknown name is an error that lists the known ones and the nearest."""
    known = discover(package, attribute)
    if name not in known:
        known = discover_all(package, attribute)
    if name in known:
        return known[name]
    raise TrtspecError(f"unknown {what} {name!r}; known: {', '.join(known)}", hint=did_you_mean(name, known))


def did_you_mean(name: str, known: Any, ending: str = "") -> str | None:
    """Return `did you mean 'x'?` for the nearest spelling among `known`, or None where nothing is near.

    `ending` is what all of them end with; it is shown, and makes no two of them alike.
    """
    near = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"did you mean {near[0] + ending!r}?" if near else None
