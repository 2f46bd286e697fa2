# SPDX-License-Identifier: Apache-2.0
"""Rollout commands: stage a new artifact for a live deployment, hand it to the supervisor and report the progress.

The command may end at any time and be repeated: the supervisor continues, and the same artifact is not staged twice.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trtspec.bench.gates import GATES, undecided_policy
from trtspec.core.errors import DeployError, RolledBack, TrtspecError
from trtspec.deployment.health import request_text
from trtspec.deployment.journal import RUNNING, DeploymentJournal, DeploymentRecord, RunningDeployment
from trtspec.deployment.log import tail_hint
from trtspec.deployment.options import PORTS, DeployOptions, OnEvent
from trtspec.deployment.ports import as_port_in_use, reserved_ports
from trtspec.deployment.revision import next_revision, revision_dir, stage_revision
from trtspec.deployment.rollout.state import (
    ROLLBACK,
    RolloutPolicy,
    RolloutRecord,
    active_rollout,
    read_rollout,
    send_command,
    take_command,
    write_rollout,
)
from trtspec.engine.simulated_acceptance import SIMULATED
from trtspec.recipe.resolve import ResolvedRecipe
from trtspec.serving.triton.server import EXIT_TIMEOUT_S
from trtspec.store.artifact import Artifact, load_artifact

POLL_S = 0.1
BEGUN_S = 30.0  # time limit for the supervisor to begin; it checks every 0.25 s
ROOM_BYTES = 1 << 20  # minimum free disk space, for the records and logs of a rollout
SETTLED_S = 60.0  # time limit for the supervisor to execute a command
RESTARTED_S = 30.0  # time limit for a restarting server to answer again
ANSWER_S = 10.0  # time limit for one token of a live server
PORT_TRIES = 3  # maximum number of rollouts, each avoiding ports taken by other processes


@dataclass
class RolloutResult(RunningDeployment):
    """A deployment after a rollout, under its existing supervisor."""

    rollout: RolloutRecord | None = None

    def as_dict(self) -> dict[str, Any]:
        return super().as_dict() | ({"rollout": self.rollout.as_dict()} if self.rollout else {})


def start_rollout(
    journal: DeploymentJournal, record: DeploymentRecord, artifact: Artifact, options: DeployOptions
) -> RolloutResult:
    """Replace the served artifact; return once the new revision is promoted or holding.

    An artifact that is already served is left unchanged. Raises RolledBack if the new revision is rejected, and
    DeployError if the rollout cannot start.
    """
    _check_same_endpoints(record, options)
    rollout = active_rollout(journal, record)
    if rollout is None and artifact.digest == record.manifest:
        record = _wait_until_answering(journal, options)
        options.on_event("live", f"this artifact is already served as revision {record.revision}")
        return RolloutResult(journal, record)
    if rollout is not None and rollout.record.manifest != artifact.digest:
        hint = f"trtspec promote {record.name}, or trtspec rollback {record.name}"
        raise DeployError(
            f"a rollout is already in progress: revision {rollout.record.revision} is {rollout.state}", hint=hint
        )
    if rollout is not None:
        return watch_rollout(journal, rollout.record.revision, options.on_event)
    return _run_rollout(journal, record, artifact, options)


def _run_rollout(
    journal: DeploymentJournal,
    record: DeploymentRecord,
    artifact: Artifact,
    options: DeployOptions,
    *,
    before: int = 0,
    source: str = "",
) -> RolloutResult:
    """Stage a revision and follow its rollout; retry with other ports if another process takes one.

    Raises VerificationFailed or DeployError if one of the two revisions accepts drafts by simulation.
    """
    artifact.manifest.check_not_simulated(artifact.root)
    if SIMULATED in record.method:
        hint = "wait until the test has ended, or choose another name with --name"
        raise DeployError(f"{record.name!r} is a capacity test with simulated acceptance", hint=hint)
    for tries_left in reversed(range(PORT_TRIES)):
        with reserved_ports(journal, _server_options(options), PORTS[:3]) as ports:
            rollout = _stage_rollout(journal, record, artifact, options, ports, before=before, source=source)
            try:
                return watch_rollout(journal, rollout.record.revision, options.on_event)
            except RolledBack as error:
                taken = as_port_in_use(error.reason)
                if not tries_left or taken is None or taken.which in options.ports:
                    raise
                options.on_event("ports", f"{error.reason}; retrying with another port")
    raise AssertionError("PORT_TRIES is at least 1")


def _wait_until_answering(journal: DeploymentJournal, options: DeployOptions) -> DeploymentRecord:
    """Wait until a deployment answers a request and return its record; raises DeployError if it does not."""
    deadline = time.monotonic() + min(options.timeout_s, RESTARTED_S)
    record = journal.read_existing()
    while record.state == "restarting" and " is in use" not in record.reason and record.is_running:
        if time.monotonic() > deadline:
            break
        time.sleep(POLL_S)
        record = journal.read_existing()
    if record.state != "live" or not record.is_running:
        hint = f"it restarts automatically once the cause is removed; trtspec status {record.name}"
        if record.state_now != "restarting":
            hint = f"trtspec logs {record.name}; restart it with trtspec deploy ARTIFACT"
        because = f": {record.reason}" if record.reason else ""
        raise DeployError(f"{record.name!r} is {record.state_now} and does not answer{because}", hint=hint)
    try:
        request_text(record.endpoints["http"], min(options.timeout_s, ANSWER_S))
    except TrtspecError as error:
        message = f"{record.name!r} is already deployed but does not answer: {error.message}"
        hint = f"trtspec status {record.name}, or trtspec stop {record.name} and redeploy"
        raise DeployError(message, hint=hint) from None
    return record


def watch_rollout(journal: DeploymentJournal, revision: int, on_event: OnEvent) -> RolloutResult:
    """Report the progress of a rollout until it is promoted or holding; each of its steps has a time limit.

    Raises RolledBack if the revision is rejected, and DeployError if the deployment ends.
    """
    reported = ""
    begun_by = time.monotonic() + BEGUN_S + 2 * journal.read_existing().drain_s  # an earlier revision may still drain
    while True:  # unbounded: the supervisor's steps have time limits, and its death ends the loop
        record, rollout = journal.read_existing(), _read_current(journal, revision)
        if (what := f"{rollout.state} {rollout.share}") != reported:
            reported = what
            on_event(rollout.state, _describe(rollout))
        if rollout.state == "rolled-back":
            message = f"revision {revision} is rolled back: {rollout.reason}"
            raise RolledBack(message, hint=tail_hint(journal), reason=rollout.reason)
        if rollout.state == "holding" or (rollout.state == "promoted" and record.revision == revision):
            return RolloutResult(journal, record, rollout)
        if not record.is_running:
            raise DeployError("the deployment ended during the rollout", hint=tail_hint(journal))
        if rollout.state == "staged" and time.monotonic() > begun_by:
            message = f"the supervisor did not begin the rollout within {BEGUN_S:.0f} s"
            raise DeployError(message, hint=tail_hint(journal))
        time.sleep(POLL_S)


def roll_back(journal: DeploymentJournal, on_event: OnEvent) -> dict[str, Any]:
    """Return to the previous revision and return the deployment's document.

    During a rollout, the supervisor does so immediately. Otherwise, a new rollout serves the previous revision's files.
    """
    record = journal.read_existing()
    if active_rollout(journal, record):
        return run_command(journal, ROLLBACK, "rolled-back")
    with journal.lock():
        _check_runs(record)
        before, source = previous_revision(journal, record)
        options = DeployOptions(
            name=journal.name,
            host=record.host,
            openai_host=record.openai_host,
            shares=(100,),
            skip_gates=GATES,
            on_event=on_event,
        )
        artifact = load_artifact(revision_dir(journal, before) / "artifact")
        rolled = _run_rollout(journal, record, artifact, options, before=before, source=source)
        return rolled.as_dict() | {"files_of": before}


def previous_revision(journal: DeploymentJournal, record: DeploymentRecord) -> tuple[int, str]:
    """Return the number and build path of the latest other staged revision; raises DeployError if none is left."""
    served = [entry for entry in journal.entries() if entry["state"] == "live" and entry.get("revision")]
    for entry in reversed(served):
        place = revision_dir(journal, entry["revision"]) / "artifact"
        if entry["manifest"] != record.manifest and place.exists():
            return entry["revision"], entry["artifact"]
    raise DeployError(
        f"no other revision of {journal.name!r} is available", hint="deploy the artifact with trtspec deploy"
    )


def rollout_policy(recipe: ResolvedRecipe, shares: Sequence[int]) -> RolloutPolicy:
    """Return the rollout policy of a recipe; non-empty `shares` override the recipe's."""
    wanted = recipe.serving.rollout
    return RolloutPolicy(
        shares=tuple(shares) or tuple(wanted.canary),
        hold_s=wanted.hold_s,
        min_requests=wanted.min_requests,
        max_failed=wanted.max_failed,
        max_latency_ratio=wanted.max_latency_ratio,
        min_acceptance=recipe.gates.min_acceptance,
        shadow=wanted.shadow,
    )


def _stage_rollout(
    journal: DeploymentJournal,
    record: DeploymentRecord,
    artifact: Artifact,
    options: DeployOptions,
    ports: Mapping[str, int],
    *,
    before: int = 0,
    source: str = "",
) -> RolloutRecord:
    """Stage a new revision of a live deployment and write the rollout's state file for its supervisor.

    `before` is a formerly served revision that is restored, and `source` the path that it was built at.
    """
    limits = rollout_policy(artifact.recipe, options.shares)
    if source:
        limits = replace(limits, hold_s=0.0, min_requests=1, shadow=0)
    if options.shadow is not None:
        limits = replace(limits, shadow=options.shadow)
    if not record.openai:
        limits = replace(limits, shares=limits.shares[-1:], shadow=0)  # without a gateway, requests cannot be split
    drain_s = options.drain_s or int(record.drain_s) or EXIT_TIMEOUT_S
    revision = next_revision(journal)
    try:
        new = stage_revision(
            journal, revision, artifact, ports, record.host, drain_s, options.timeout_s, record.detached
        )
        new = replace(new, artifact=source or new.artifact, pid=record.pid, started=record.started)
        new = replace(new, openai=record.openai, openai_host=record.openai_host)
        if bool(record.openai) != artifact.recipe.serving.openai:
            message = "only one of the two artifacts has an OpenAI gateway"
            raise DeployError(message, hint="build it with the same serving.openai, or stop the deployment first")
        if shutil.disk_usage(journal.root).free < ROOM_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(journal.root))
        staged = f"the files of revision {before} are staged" if before else "the files are staged"
        take_command(journal)  # discard commands for earlier rollouts
        rollout = RolloutRecord(new, limits, tuple(options.skip_gates), undecided=undecided_policy())
        return write_rollout(journal, rollout, staged)
    except BaseException:  # for example on a full disk
        shutil.rmtree(revision_dir(journal, revision), ignore_errors=True)
        raise


def _check_same_endpoints(record: DeploymentRecord, options: DeployOptions) -> None:
    """Raise DeployError for options that a running deployment cannot change."""
    if (port := options.ports.get("openai")) and port != record.openai:
        message = f"{record.name!r} is already deployed with OpenAI port {record.openai}, which cannot change"
        raise DeployError(message, hint=f"omit --openai-port, or trtspec stop {record.name} first")
    if options.host != record.host:
        message = f"{record.name!r} is already deployed at {record.host}"
        raise DeployError(message, hint=f"use --host {record.host}, or trtspec stop {record.name} first")
    if (options.openai_host or options.host) != record.bind_address("openai") and record.openai:
        message = f"{record.name!r} is already deployed with its OpenAI gateway at {record.bind_address('openai')}"
        raise DeployError(
            message, hint=f"use --openai-host {record.bind_address('openai')}, or trtspec stop {record.name} first"
        )
    if options.shadow and not record.openai:
        message = f"--shadow requires an OpenAI gateway, which {record.name!r} does not have"
        raise DeployError(message, hint="omit it, or stop the deployment and build with serving.openai: true")
    if not record.front:
        message = f"{record.name!r} was deployed by an earlier trtspec, whose supervisor does not support rollouts"
        raise DeployError(message, hint=f"trtspec stop {record.name}, then deploy it again")


def run_command(journal: DeploymentJournal, what: str, wanted: str) -> dict[str, Any]:
    """Send a command to the rollout in progress, wait for its effect and return the deployment's document.

    Raises RolledBack if the rollout ends in another state than `wanted`, and DeployError if it does not end.
    """
    record = journal.read_existing()
    _check_runs(record)
    rollout = active_rollout(journal, record)
    if rollout is None:
        raise DeployError(f"no rollout of {journal.name!r} is in progress", hint=f"trtspec history {journal.name}")
    send_command(journal, what)
    deadline = time.monotonic() + SETTLED_S
    while time.monotonic() < deadline:
        rollout, record = _read_current(journal, rollout.record.revision), journal.read_existing()
        if rollout.state == wanted and (wanted != "promoted" or record.revision == rollout.record.revision):
            return RolloutResult(journal, record, rollout).as_dict()
        if rollout.is_over and rollout.state != wanted:
            raise RolledBack(f"revision {rollout.record.revision} is {rollout.state}: {rollout.reason}")
        if not record.is_running:
            break
        time.sleep(POLL_S)
    raise DeployError(f"the supervisor did not finish within {SETTLED_S:.0f} s", hint=tail_hint(journal))


def _read_current(journal: DeploymentJournal, revision: int) -> RolloutRecord:
    rollout = read_rollout(journal)
    if rollout is None or rollout.record.revision != revision:
        raise DeployError(f"the rollout of revision {revision} was replaced by another one")
    return rollout


def _server_options(options: DeployOptions) -> DeployOptions:
    """Return options for choosing the new server's ports: without the gateway's port, and without events."""
    ports = {name: port for name, port in options.ports.items() if name != "openai"}
    return replace(options, ports=ports, on_event=lambda state, what: None)


def _check_runs(record: DeploymentRecord) -> None:
    if record.state_now not in RUNNING:
        raise DeployError(f"{record.name!r} is {record.state_now}", hint="start it with trtspec deploy ARTIFACT")


def _describe(rollout: RolloutRecord) -> str:
    if rollout.state == "staged":
        return f"revision {rollout.record.revision} is handed to supervisor process {rollout.record.pid}"
    if rollout.state in ("shadow", "canary", "holding"):
        share = 0 if rollout.state == "shadow" else rollout.share
        return f"revision {rollout.record.revision} gets {rollout.traffic(share)}"
    return rollout.reason or f"revision {rollout.record.revision}"
