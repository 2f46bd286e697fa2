# SPDX-License-Identifier: Apache-2.0
"""The plan of an artifact: its steps, and the facts and notes about them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trtspec.core.diagnostics import Diagnostic
    from trtspec.store.step import Step


@dataclass(frozen=True)
class ArtifactPlan:
    """The steps of an artifact, keyed by the directory of their files in it ("" is the artifact's root).

    `tools` and `gpu` are the builder and device that the manifest records. `notes` are remarks for users, and `facts`
    their machine-readable form, by key of `plan --json`. `problems` returns the objections of the installed tools; it
    is slow, and only builds call it. `lacks` maps the directory of a step to the reason why this machine cannot run
    the step. `devices` are the devices that steps may use.
    """

    steps: Mapping[str, Step]
    tools: Mapping[str, str] = field(default_factory=dict)
    gpu: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    problems: Callable[[], list[str]] = list
    lacks: Mapping[str, Diagnostic] = field(default_factory=dict)
    devices: tuple[str, ...] = ()
