# SPDX-License-Identifier: Apache-2.0
"""Which steps make the artifact of a recipe: one module an engine, named like it, joins by defining `LAYOUT`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from trtspec.check import Findings
from trtspec.backends.base import Case
from trtspec.graph.step import Step
from trtspec.recipe.resolve import ResolvedRecipe
from trtspec.registry import find
from trtspec.graph.files import FileReader


@dataclass(frozen=True)
class Ground:
    """What a layout is made from: the recipe with nothing left open, what was found of it, and who reads its files."""

    recipe: ResolvedRecipe
    findings: Findings
    case: Case
    reader: FileReader


@dataclass(frozen=True)
class Layout:
    """The steps whose files make an artifact, by their directory in it ("" is its root).

    `tools` and `gpu` are what the manifest records of who builds and for which device; `notes` is what people should
    know of the plan, and `facts` the same for programs, by key of `plan --json`. `problems` asks what is installed
    here, which takes long, what it has against it all; a build does. `devices` are what steps may be given.
    """

    steps: Mapping[str, Step]
    tools: Mapping[str, str] = field(default_factory=dict)
    gpu: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    problems: Callable[[], list[str]] = list
    devices: tuple[str, ...] = ()


def lay_out(backend: str, ground: Ground) -> Layout:
    """Return the layout of an engine's artifact."""
    make: Callable[[Ground], Layout] = find("trtspec.layouts", "LAYOUT", backend, "layout")
    return make(ground)
