# SPDX-License-Identifier: Apache-2.0
"""The artifacts that deployments use: those of the current and the previous revision, and of a rollout."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from trtspec.core.errors import DeployError
from trtspec.deployment.journal import DeploymentJournal, deployment_names
from trtspec.deployment.rollout.commands import previous_revision
from trtspec.deployment.rollout.state import read_rollout

UNUSED = {"stopped", "failed"}


def artifacts_in_use() -> set[Path]:
    """Return the directories of the artifacts of all deployments that are neither stopped nor failed.

    Raises DeployError if a deployment's record cannot be read.
    """
    found = set[Path]()
    for name in deployment_names():
        journal = DeploymentJournal(name)
        record = journal.read()
        if record is None or record.state in UNUSED:
            continue
        found.add(Path(record.artifact))
        if rollout := read_rollout(journal):
            found.add(Path(rollout.record.artifact))
        with suppress(DeployError):  # there is no previous revision
            found.add(Path(previous_revision(journal, record)[1]))
    return found
