# SPDX-License-Identifier: Apache-2.0
"""Discovery of extensions: each extension is one module or folder, found by scanning, so no list has to be edited.

A module of the scanned folder registers an extension by defining the requested attribute. Modules without the
attribute, such as base classes, are skipped. An extension that is a folder can have parts that are loaded separately:
with `part="drafter"`, the module `NAME/drafter.py` is read.

Installed packages register extensions through entry points. The entry point group is the dotted name of the folder
("trtspec.families"), followed by the part if there is one ("trtspec.methods.drafter"). Entry points are read only if no
built-in extension matches, because reading the metadata of all installed packages is slow.
"""

from __future__ import annotations

import importlib
import pkgutil
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

from trtspec.core.errors import TrtspecError


@cache
def discover(package: str, attribute: str, part: str = "") -> dict[str, Any]:
    """Return a mapping from name to `attribute` for the built-in extensions in `package`, sorted by name."""
    found = {name: _load(package, attribute, name, part) for name in _built_in(package, part)}
    return {name: each for name, each in found.items() if each is not None}


def _load(package: str, attribute: str, name: str, part: str) -> Any:
    """Return `attribute` of a built-in module, or None if the module does not define it."""
    return getattr(importlib.import_module(".".join(filter(None, (package, name, part)))), attribute, None)


def _built_in(package: str, part: str) -> list[str]:
    """Return the sorted extension names in a folder, without importing them; with `part`, only those that have it."""
    top, *rest = package.split(".")
    folders = [Path(root, *rest) for root in importlib.import_module(top).__path__]
    found = {info.name for info in pkgutil.iter_modules(map(str, folders))}
    return sorted(name for name in found if not part or any((root / name / f"{part}.py").is_file() for root in folders))


@cache
def discover_all(package: str, attribute: str, part: str = "") -> dict[str, Any]:
    """Return a mapping from name to `attribute` for all extensions, built in or from installed packages.

    Raises TrtspecError for a duplicate name or an entry point that cannot be loaded.
    """
    from importlib.metadata import entry_points

    found, group = dict(discover(package, attribute, part)), _group(package, part)
    for entry in sorted(entry_points(group=group), key=lambda entry: entry.name):
        provider = f"{entry.dist.name} {entry.dist.version}" if entry.dist else "an installed package"
        where = f"entry point {entry.name!r} of {provider} in the group {group}"
        if entry.name in found:
            raise TrtspecError(f"{entry.name!r} is already registered", where=where, hint="choose another name")
        try:
            found[entry.name] = entry.load()
        except (ImportError, AttributeError) as error:
            hint = "repair or uninstall that package"
            raise TrtspecError(f"cannot load {entry.value}: {error}", where=where, hint=hint) from error
    return found


def _group(package: str, part: str) -> str:
    return f"{package}.{part}" if part else package


@cache
def extension_names(package: str, part: str = "") -> tuple[str, ...]:
    """Return the sorted names of all extensions, built in or installed, without importing any of them."""
    from importlib.metadata import entry_points

    entries = entry_points(group=_group(package, part))
    return tuple(sorted({*_built_in(package, part), *(entry.name for entry in entries)}))


def provider_version(package: str, name: str) -> str:
    """Return "NAME VERSION" of the installed package that provides an extension; "" for a built-in extension."""
    from importlib.metadata import entry_points

    for entry in entry_points(group=package, name=name):
        return f"{entry.dist.name} {entry.dist.version}" if entry.dist else "unknown"
    return ""


def find_extension(package: str, attribute: str, name: str, what: str, part: str = "") -> Any:
    """Return `attribute` of the extension called `name`; `what` is the kind of extension, for error messages.

    A built-in extension is imported alone. Raises TrtspecError, with the known names and the closest match, if the name
    is unknown.
    """
    if name in _built_in(package, part) and (found := _load(package, attribute, name, part)) is not None:
        return found
    known = discover_all(package, attribute, part)
    if name in known:
        return known[name]
    raise TrtspecError(f"unknown {what} {name!r}; known: {', '.join(known)}", hint=did_you_mean(name, known))


def did_you_mean(name: str, known: Any, ending: str = "") -> str | None:
    """Return the hint "did you mean 'x'?" for the name in `known` that is closest to `name`, or None.

    `ending` is a suffix that is appended to the suggestion but not compared.
    """
    near = get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f"did you mean {near[0] + ending!r}?" if near else None
