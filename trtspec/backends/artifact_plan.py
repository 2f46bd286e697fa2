# SPDX-License-Identifier: Apache-2.0
"""What a backend makes of a recipe: the steps of its artifact, and what the plan says of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trtspec.core.diagnostics import Diagnostic
    from trtspec.store.step import Step


@dataclass(frozen=True)
class ArtifactPlan:
    """The steps whose files make an artifact, by their directory in it ("" is its root).

    `tools` and `gpu` are what the manifest records of who builds and for which device; `notes` is what people should
    know of the plan, and `facts` the same for programs, by key of `plan --json`. `problems` asks the installed tools
    what they have against it, which takes long; a build does. `lacks` says, by a step's directory, why it cannot run on
    this machine. `devices` are what steps may be given.
    """

    steps: Mapping[str, Step]
    tools: Mapping[str, str] = field(default_factory=dict)
    gpu: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    problems: Callable[[], list[str]] = list
    lacks: Mapping[str, Diagnostic] = field(default_factory=dict)
    devices: tuple[str, ...] = ()
