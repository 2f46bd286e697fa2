# SPDX-License-Identifier: Apache-2.0
"""Kubernetes target: manifests rendered for an artifact, applied, watched and deleted with kubectl."""

from trtspec.deployment.base import DeployTarget
from trtspec.deployment.targets.kubernetes.kubectl import deploy_kubernetes, fetch_log, state, stop
from trtspec.deployment.targets.kubernetes.manifests import render_kubernetes
from trtspec.deployment.targets.kubernetes.settings import OPTIONS

TARGET = DeployTarget(
    deploy=deploy_kubernetes,
    stop=stop,
    state=state,
    render=render_kubernetes,
    options=OPTIONS,
    fetch_log=fetch_log,
)
