# SPDX-License-Identifier: Apache-2.0
"""The interface of a model family, and the lookup of a checkpoint's family."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from trtspec.checkpoints.model_config import ConfigReader, ModelConfig
from trtspec.checkpoints.rules import Rule, Skip
from trtspec.checkpoints.source import Source
from trtspec.core.diagnostics import quote_value
from trtspec.core.errors import UnsupportedArchitecture
from trtspec.core.registry import discover, discover_all, provider_version

PACKAGE, ATTRIBUTE = "trtspec.families", "FAMILY"


@dataclass(frozen=True)
class Family:
    """One model family. Modules of `trtspec.families` define it as `FAMILY`; installed packages register it as an entry
    point.

    `architectures` are the supported names in config.json. `read` maps config.json (with the requested dtype, or
    "auto") to the neutral description. `rules` lists every tensor of the converted checkpoint, and `skips` the source
    tensors that are not converted.
    """

    architectures: tuple[str, ...]
    read: Callable[[ConfigReader, str], ModelConfig]
    rules: Callable[[ModelConfig], list[Rule]]
    skips: Callable[[ModelConfig], list[Skip]]


def family_version(name: str) -> str:
    """Return the name and version of the installed package that provides a family; "" for a built-in one."""
    return "" if name in discover(PACKAGE, ATTRIBUTE) else provider_version(PACKAGE, name)


def find_family(source: Source) -> tuple[str, Family]:
    """Return (name, family) of a source; raise UnknownArchitecture, with the supported names, if it is unsupported."""
    reader = source.reader
    names = source.config.get("architectures")
    if not isinstance(names, list) or len(names) != 1 or not isinstance(names[0], str):
        raise reader.refuse_value(f"architectures is {quote_value(names)}, expected a list with one name")
    families: dict[str, Family] = {}
    for look in (discover, discover_all):
        families = look(PACKAGE, ATTRIBUTE)
        for name, family in families.items():
            if names[0] in family.architectures:
                return name, family
    known = sorted(architecture for family in families.values() for architecture in family.architectures)
    error = reader.unsupported(f"architecture {names[0]!r} is not supported; supported: {', '.join(known)}")
    hint = f"{error.hint}; docs/extending.md describes how to add a family"
    raise UnsupportedArchitecture(error.message, architecture=names[0], where=reader.where, hint=hint)
