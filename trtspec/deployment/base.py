# SPDX-License-Identifier: Apache-2.0
"""Deployments on any target: serving artifacts whose gates pass, and their status, logs, rollouts and removal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime, timezone
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any

from trtspec.bench.bench import OnProgress
from trtspec.bench.gates import SkippedCheck, skipped_on_request
from trtspec.bench.verify import deploy_estimate_s, deploy_load, ensure_gates, ensure_served_gates
from trtspec.core.errors import DeployError, TrtspecError, describe_os_error_at, os_error_remedy
from trtspec.core.paths import state_dir
from trtspec.deployment.containers import ContainerWorkload, RenderedFiles, make_workload, write_rendered
from trtspec.deployment.journal import (
    OVER,
    RUNNING,
    STARTING,
    STATE_FILE,
    DeploymentJournal,
    DeploymentRecord,
    RunningDeployment,
    deployment_names,
    status_document,
)
from trtspec.deployment.log import follow_log
from trtspec.deployment.options import DeployOptions, OnEvent
from trtspec.deployment.rollout.commands import previous_revision, roll_back, run_command, start_rollout
from trtspec.deployment.rollout.state import PROMOTE, read_rollout
from trtspec.deployment.target import DeployTarget, find_target
from trtspec.serving.triton.client import Client
from trtspec.store.artifact import Artifact, load_artifact
from trtspec.store.artifact_paths import REPOSITORY
from trtspec.store.registries.description import RegistrySource, describe_artifact
from trtspec.store.registries.pull import check_location, local_artifact
from trtspec.store.registries.repository import is_location
from trtspec.store.signatures.policy import Policy


def obtain_artifact(
    artifact: str | PathLike[str],
    target: str,
    expected: str = "",
    *,
    policy: Policy | None = None,
    on_progress: OnProgress = lambda what, done, total: None,
) -> tuple[Path, str, RegistrySource | None]:
    """Return the directory of an artifact to deploy on a target, and its place if the target's servers pull it.

    Between them is the SHA-256 that the manifest has to have from now on, or "". An artifact at a location is pulled
    into the cache, or only described if the servers pull it themselves. Raises like `local_artifact`.
    """
    if isinstance(artifact, str) and is_location(artifact) and find_target(target).pulls:
        if policy:
            expected = check_location(artifact, policy, expected).manifest
        described, source = describe_artifact(artifact, expected=expected)
        return described.root, described.digest, source
    return *local_artifact(artifact, expected, policy=policy, on_progress=on_progress), None


def deploy(
    root: Path,
    target: str,
    options: DeployOptions,
    *,
    on_progress: OnProgress = lambda what, done, total: None,
    baseline: str | None = None,
    on_left_out: Callable[[Sequence[SkippedCheck]], None] = lambda left_out: None,
) -> RunningDeployment:
    """Serve an artifact if its gates pass.

    The gates are decided by an earlier report of this user, by measuring them now, or on the new server before it is
    live. `baseline` is the name or address of a server without speculation. `on_left_out` receives the skipped gates.
    Raises like `ensure_gates` and the target.
    """
    where, skip = find_target(target), options.skip_gates
    if options.name is not None:
        DeploymentJournal(options.name)  # raises for an invalid name, before gates are measured
    artifact = load_artifact(root, options.manifest)
    artifact.manifest.check_not_simulated(root)
    _check_free(options.name or artifact.recipe.name, target)
    if where.render is not None:
        if baseline:
            raise DeployError(
                f"target {target} does not support --baseline",
                hint="skip the gate with --skip-gate, or run trtspec verify",
            )
        if options.wait_warm:
            hint = "omit --wait-for-warmup: the container's health probe requests a text"
            raise DeployError(f"target {target} does not support --wait-for-warmup", hint=hint)
        return serve(artifact, target, options)
    _check_settings(target, options.settings)
    other = Client.at(resolve_server_address(baseline)[0]) if baseline else None
    if skip:
        on_left_out([skipped_on_request(name) for name in skip])
    announce, trusted = partial(_announce, artifact, options.on_event), options.trusted_report
    if not ensure_gates(root, on_progress, skip, on_left_out, announce, expected=options.manifest, trusted=trusted):

        def judge(url: str) -> None:
            load = deploy_load(root, skip, on_progress)
            on_left_out(ensure_served_gates(Client.at(url), root, load, other))

        options = replace(options, before_live=judge)
    return serve(artifact, target, options)


def serve(artifact: Artifact, target: str, options: DeployOptions) -> RunningDeployment:
    """Serve an artifact without evaluating its gates; a live deployment of its name is replaced in a rollout."""
    artifact.manifest.check_not_simulated(artifact.root)
    where = find_target(target)
    with _os_errors_as_deploy_errors():
        journal = DeploymentJournal(options.name or artifact.recipe.name)
        with journal.lock():
            record = journal.read()
            if where.rollouts and record and record.target == target and record.state_now in RUNNING:
                return start_rollout(journal, record, artifact, options)
            return where.deploy(journal, artifact, options)


def _announce(artifact: Artifact, on_event: OnEvent, gates: tuple[str, ...], in_process: bool) -> None:
    """Report that gates will be measured, with the reason, the expected duration and the option to skip them."""
    root, takes = artifact.root, "on its server before it is live"
    if in_process:
        seconds = deploy_estimate_s(root, artifact.manifest)
        about = f"{max(10, round(seconds, -1)):.0f} s" if seconds < 100 else f"{round(seconds / 60)} minutes"
        takes = f"now, for about {about}"
    on_event("gates", f"no report of {root} covers its gates; measuring them {takes}: {', '.join(gates)}")
    on_event("", f"to measure them in advance: trtspec verify {root}; to skip one: --skip-gate {gates[0]}")


def render(root: Path, target: str, out: Path, options: DeployOptions) -> list[str]:
    """Write the files that serve an artifact on a target below `out` and return their paths; nothing is started."""
    check_renders(target, options)
    artifact = load_artifact(root, options.manifest)
    artifact.manifest.check_not_simulated(root)
    return write_files(make_workload(artifact, options), target, root / REPOSITORY, out)


def check_renders(target: str, options: DeployOptions) -> None:
    """Raise DeployError if a target cannot render files for these options."""
    if find_target(target).render is None:
        _check_settings(target, options.settings)
        raise DeployError(
            f"target {target} does not support --render", hint="omit --render, or choose another --target"
        )
    if options.name is not None:
        DeploymentJournal(options.name)  # raises for an invalid name


def write_files(
    workload: ContainerWorkload,
    target: str,
    repository: Path,
    out: Path,
    change: Callable[[RenderedFiles], RenderedFiles] = lambda files: files,
) -> list[str]:
    """Write a workload's files for a target that renders, after a `change`, below `out` and return their paths."""
    where = find_target(target)
    if where.render is None:
        raise ValueError(f"{target} does not render")
    with _os_errors_as_deploy_errors(out):
        return write_rendered(out, change(where.render(workload, repository)))


def serves_in_containers(target: str) -> bool:
    """Return whether a target serves in containers, whose files set what its servers may access."""
    return find_target(target).render is not None


def _check_settings(target: str, settings: Mapping[str, str]) -> None:
    if settings:
        raise DeployError(
            f"target {target} does not support {', '.join(sorted(settings))}", hint="these are options of other targets"
        )


def _check_free(name: str, target: str) -> None:
    """Raise DeployError if a deployment of this name runs on another target; its record would be lost."""
    record = DeploymentJournal(name).read()
    if record is None or record.target == target or record.state not in (*STARTING, "live"):
        return
    if find_target(record.target).state(record) in ("live", "starting", "unhealthy"):
        hint = f"trtspec stop {record.name}, or choose another name with --name"
        raise DeployError(f"{record.name!r} is already deployed on {record.target}", hint=hint)


def resolve_server_address(what: str) -> tuple[str, dict[str, Any]]:
    """Return the HTTP address of a deployment name or URL, and the status document of a named deployment."""
    if "://" in what:
        return what, {}
    document = status(what)
    return document["endpoints"]["http"], document


def status(name: str) -> dict[str, Any]:
    """Return the status document of a deployment on any target."""
    with _os_errors_as_deploy_errors():
        target, journal = deployment_target(name), DeploymentJournal(name)
        if target.status is None:
            record = journal.read_existing()
            return status_document(journal, record, target.state(record))
        rollout = read_rollout(journal) if target.rollouts else None
        return target.status(name) | ({"rollout": rollout.as_dict()} if rollout else {})


def deployments() -> list[dict[str, Any]]:
    """Return all deployments, sorted by name, running or not; servers are not contacted."""
    with _os_errors_as_deploy_errors():
        return [_listed(name) for name in deployment_names()]


def _listed(name: str) -> dict[str, Any]:
    """Return the list entry of a deployment; a broken record or target yields state "unknown"."""
    try:
        record = DeploymentJournal(name).read_existing()
        state = find_target(record.target).state(record)
    except TrtspecError as error:
        return {"name": name, "state": "unknown", "error": str(error)}
    keys = ("name", "target", "artifact", "backend", "method", "endpoints", "host", "pid", "restarts", "reason")
    return {key: getattr(record, key) for key in keys} | {"state": state, "since": _utc(record.since)}


def _utc(seconds: float) -> str | None:
    try:
        return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds") if seconds else None
    except (OverflowError, ValueError, OSError):  # a damaged file
        return None


def stop(name: str) -> dict[str, Any]:
    """Stop a deployment on any target and return its document."""
    with _os_errors_as_deploy_errors():
        return deployment_target(name).stop(name)


def remove(name: str, *, force: bool = False) -> dict[str, Any]:
    """Remove the record, journal, logs and revisions of a deployment that does not run.

    With `force`, a running deployment is stopped first. It is removed even if it cannot be stopped; the result's `left`
    is then the reason why it may still run. Without `force`, a running deployment raises DeployError.
    """
    with _os_errors_as_deploy_errors():
        journal, left = DeploymentJournal(name), "its record is unreadable"
        try:
            record = journal.read_existing()
        except DeployError:
            if not force or not (journal.root / STATE_FILE).exists():
                raise
        else:
            left = _stopped(name, record, force=force)
        with journal.lock():
            journal.remove()
        return {"name": name, "removed": True, "left": left}


def _stopped(name: str, record: DeploymentRecord, *, force: bool) -> str:
    """Stop a deployment before its removal; return the error message of a failed stop, else "".

    Without `force`, raises DeployError if the deployment runs or the stop fails.
    """
    target = find_target(record.target)
    state = target.state(record)
    if state in OVER:
        return ""
    if state != "dead" and not force:
        raise DeployError(f"{name!r} is {state}", hint=f"trtspec stop {name}, or trtspec rm --force {name}")
    try:
        target.stop(name)
    except TrtspecError as error:
        if not force:
            hint = f"{error.hint or error.message}\ntrtspec rm --force {name} removes its record anyway"
            raise DeployError(f"{name!r} cannot be removed: {error.message}", hint=hint) from None
        return error.message
    return ""


def promote(name: str) -> dict[str, Any]:
    """Promote the new revision of the rollout in progress once its gates have passed, without further shares."""
    with _os_errors_as_deploy_errors():
        return run_command(_journal_with_rollouts(name), PROMOTE, "promoted")


def rollback(name: str, on_event: OnEvent) -> dict[str, Any]:
    """Roll back the rollout in progress, or return to the previous revision in a new rollout."""
    with _os_errors_as_deploy_errors():
        return roll_back(_journal_with_rollouts(name), on_event)


def _journal_with_rollouts(name: str) -> DeploymentJournal:
    """Return a deployment's journal; raises DeployError if its target does not support rollouts."""
    journal = DeploymentJournal(name)
    target = journal.read_existing().target
    if not find_target(target).rollouts:
        raise DeployError(f"target {target} manages rollouts itself", hint=f"trtspec status {name}")
    return journal


def fetch_log(name: str) -> DeploymentJournal:
    """Fetch the log of a deployment to this machine and return the deployment's journal."""
    journal = DeploymentJournal(name)
    if fetch := deployment_target(name).fetch_log:
        fetch(journal)
    return journal


def follow(name: str, lines: int) -> Iterator[bytes]:
    """Return the last lines of a deployment's log and then new output, until its server has ended.

    Raises DeployError if the server does not log to this machine.
    """
    journal = DeploymentJournal(name)
    target = journal.read_existing().target
    if find_target(target).fetch_log:
        raise DeployError(f"the log of {name} is on {target}", hint="follow it there, or omit --follow")
    return follow_log(journal, lines)


def artifacts_in_use() -> set[Path]:
    """Return the directories of the artifacts of all deployments that are neither stopped nor failed.

    Raises DeployError if a deployment's record cannot be read.
    """
    found = set[Path]()
    for name in deployment_names():
        journal = DeploymentJournal(name)
        record = journal.read()
        if record is None or record.state in OVER:
            continue
        found.add(Path(record.artifact))
        if rollout := read_rollout(journal):
            found.add(Path(rollout.record.artifact))
        with suppress(DeployError):  # there is no previous revision
            found.add(Path(previous_revision(journal, record)[1]))
    return found


def history(name: str) -> list[dict[str, Any]]:
    """Return the journal entries of a deployment and its revisions, oldest first, with times in ISO 8601."""
    journal = DeploymentJournal(name)
    journal.read_existing()
    return [entry | {"time": _utc(entry["time"])} for entry in journal.entries()]


def deployment_target(name: str) -> DeployTarget:
    return find_target(DeploymentJournal(name).read_existing().target)


@contextmanager
def _os_errors_as_deploy_errors(place: Path | None = None) -> Iterator[None]:
    """Context manager that converts OSErrors to DeployError; `place` or the state directory is the default path."""
    try:
        yield
    except OSError as error:
        if (refused := describe_os_error_at(error, str(place or state_dir()))) is None:
            raise
        hint = "free space or grant access there, or set TRTSPEC_STATE to another directory"
        raise DeployError(refused, hint=os_error_remedy(error) or (None if place else hint)) from error
