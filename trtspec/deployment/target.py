# SPDX-License-Identifier: Apache-2.0
"""Interface of deploy targets. A module of `targets/` registers by defining `TARGET`; its name is the target's name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from pathlib import Path
from typing import Any

from trtspec.core.registry import find_extension
from trtspec.deployment.containers import ContainerWorkload, RenderedFiles
from trtspec.deployment.journal import DeploymentJournal, DeploymentRecord, RunningDeployment
from trtspec.deployment.options import DeployOptions
from trtspec.store.artifact import Artifact


@dataclass(frozen=True)
class DeployTarget:
    """The operations of a deploy target. Deployment names are unique across targets.

    Attributes:
        deploy: serves an artifact; returns after the first answered request, and leaves nothing running on failure. The
            deployment's name is locked meanwhile.
        stop, status: of a deployment by name; without `status` the state is shown as in `trtspec ps`.
        state: returns the state without contacting the server, by default from its process on this machine.
        render: returns the files that serve a workload in containers, which run `trtspec deploy` and thereby evaluate
            the gates; raises DeployError for invalid options. The path is the artifact's model repository. It chooses
            ports that the workload's options lack.
        options: name to description, of `--target-option`.
        fetch_log: copies the log of a server that logs elsewhere to this machine; without it the server writes the
            journal's log, which can then be followed.
        holds_ports: returns whether a deployment that is starting or live holds its ports on this machine, by default
            while its process runs.
        pulls: whether the servers fetch an artifact from its registry themselves. Only its description is then fetched
            to this machine, and the options have its `source`.
        rollouts: whether the target's supervisor replaces a live artifact by another one in a rollout.
    """

    deploy: Callable[[DeploymentJournal, Artifact, DeployOptions], RunningDeployment]
    stop: Callable[[str], dict[str, Any]]
    status: Callable[[str], dict[str, Any]] | None = None
    state: Callable[[DeploymentRecord], str] = attrgetter("state_now")
    render: Callable[[ContainerWorkload, Path], RenderedFiles] | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    fetch_log: Callable[[DeploymentJournal], None] | None = None
    holds_ports: Callable[[DeploymentRecord], bool] = attrgetter("is_running")
    pulls: bool = False
    rollouts: bool = False


def find_target(name: str) -> DeployTarget:
    """Return a target by name; raise TrtspecError with the known names if it is unknown."""
    target: DeployTarget = find_extension("trtspec.deployment.targets", "TARGET", name, "deploy target")
    return target
