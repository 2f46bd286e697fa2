# SPDX-License-Identifier: Apache-2.0
"""Deployments of artifacts without their gates."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from trtspec.deployment.base import serve
from trtspec.deployment.options import DeployOptions
from trtspec.deployment.targets.local import LocalDeployment
from trtspec.store.artifact import load_artifact


def deploy_local(artifact: Path, options: DeployOptions | None = None) -> LocalDeployment:
    """Serve an artifact on this machine, in a rollout if its name is live."""
    return cast(LocalDeployment, serve(load_artifact(artifact), "local", options or DeployOptions()))
