# SPDX-License-Identifier: Apache-2.0
"""Commands for existing deployments: list, inspect, promote, roll back, stop and remove."""

from __future__ import annotations

import json as json_format
import time
from datetime import datetime
from typing import Annotated, Any

import typer

from trtspec.cli import completing
from trtspec.cli.options import AnyName, Json, Name
from trtspec.cli.render import note, print_json, print_line, print_result, print_untrusted, show_table, warn
from trtspec.core.diagnostics import escape_unprintable
from trtspec.core.errors import DeployError, TrtspecError

ENDED = ("stopped", "failed", "dead")
RUNNING = ("live", "starting")
WATCH_S = 1.0
MAX_LOG_BYTES = 16 << 20  # of a JSON document


def ps(json: Json = False) -> None:
    """List the deployments, including ended ones.

    `trtspec status NAME` checks whether a deployment responds.

    Example: trtspec ps
    """
    from trtspec.deployment.base import deployments

    found = deployments()
    print_result({"format_version": 1, "deployments": found}, lambda: _show_list(found), as_json=json)


def _show_list(found: list[dict[str, Any]]) -> None:
    columns = ("name", "state", "backend", "method", "pid", "since", "endpoints")
    if found:
        show_table("", columns, [_deployment_row(each) for each in found], (4,))
    else:
        print_line("no deployments")
    for each in found:
        if error := each.get("error"):
            warn(f"{each['name']}: {error}")


def _deployment_row(deployment: dict[str, Any]) -> list[str]:
    runs = deployment["state"] in RUNNING
    since = f"{_local_time(deployment['since']):%Y-%m-%d %H:%M}" if deployment.get("since") else ""
    endpoints = "\n".join(deployment["endpoints"].values()) if runs else ""
    cells = [
        deployment.get("backend"),
        deployment.get("method"),
        str(deployment["pid"]) if runs else "",
        since,
        endpoints,
    ]
    return [deployment["name"], deployment["state"], *(cell or "-" for cell in cells)]


def _local_time(utc: str) -> datetime:
    return datetime.fromisoformat(utc).astimezone()


def status(
    name: AnyName = None,
    watch: Annotated[bool, typer.Option("--watch", help="Print each change until Ctrl-C.")] = False,
    json: Json = False,
) -> None:
    """Show a deployment's state and probe it with a request.

    Without a name, lists all deployments like `trtspec ps`. Exits with 1 if the deployment is not healthy.

    Example: trtspec status quickstart
    """
    from trtspec.deployment import base

    if name is None:
        if watch:
            raise DeployError("--watch needs the name of a deployment", hint="`trtspec ps` lists them")
        return ps(json)
    if watch:
        _follow_status(name, json)
    document = base.status(name)
    fine = document["state"] in (*RUNNING, "stopped")
    print_result(document, lambda: _show_status(document, "green" if fine else "red"), as_json=json)
    raise typer.Exit(0 if fine else 1)


def _follow_status(name: str, as_json: bool) -> None:
    """Print the state of a deployment whenever it changes; with `as_json`, one JSON document per line."""
    from trtspec.deployment import base

    last = ""
    while True:  # unbounded: until the user interrupts
        document = base.status(name)
        line = f"revision {document.get('revision', 0)} of {document['name']} is {document['state']}"
        if rollout := document.get("rollout"):
            line += f"; {_rollout_text(rollout)}"
        if line != last:
            last = line
            print_line(json_format.dumps(document) if as_json else f"{datetime.now().astimezone():%H:%M:%S} {line}")
        time.sleep(WATCH_S)


def _rollout_text(rollout: dict[str, Any]) -> str:
    share = f" with {rollout['share']} % of the requests" if rollout["share"] else ""
    reason = f": {escape_unprintable(rollout['reason'])}" if rollout["reason"] else ""
    shadow = f"; shadow: {rollout['shadow'].get('verdict', '')}" if rollout.get("shadow") else ""
    return f"revision {rollout['revision']} is {rollout['state']}{share}{reason}{shadow}"


def _show_status(document: dict[str, Any], style: str) -> None:
    """Show the state, the result of the probe, restarts, and the cause of an exit."""
    cause = f": {escape_unprintable(document['cause'])}" if document.get("cause") else ""
    print_line(f"{document['name']} is {document['state']}{cause}", style)
    if rollout := document.get("rollout"):
        print_line(f"  {_rollout_text(rollout)}")
    if probe := document.get("probe"):
        result = f"responded in {probe['seconds']:.2f} s" if probe["ok"] else f"did not respond: {probe['error']}"
        print_line(f"  {document['endpoints']['http']} {result}")
    if document["state"] == "dead":
        _show_end_of_log(document)
        return
    if reason := document.get("reason"):
        print_line(f"  restarted {document['restarts']} times, last because {escape_unprintable(reason)}")
    if sidecar := document.get("beside"):
        print_line(f"  last sidecar event: {escape_unprintable(sidecar)}")


def _show_end_of_log(document: dict[str, Any]) -> None:
    """Show the last lines of a log that report problems, or the whole end of the log if the cause is unknown."""
    from trtspec.deployment.log import problem_lines

    whole = "" if document.get("cause") else document["log"]
    if lines := (problem_lines(document["log"]) or whole).splitlines():
        print_line(f"end of {document['log_file']}:")
        for line in lines:
            print_line(escape_unprintable(line))
    else:
        print_line(f"the log contains no errors: {document['log_file']}")


def history(name: Name, json: Json = False) -> None:
    """Show a deployment's history.

    Lists the events of all revisions, oldest first.

    Example: trtspec history quickstart
    """
    from trtspec.deployment import base

    entries = base.history(name)
    columns = ("time", "revision", "state", "artifact", "event")
    print_result(
        {"format_version": 1, "name": name, "history": entries},
        lambda: show_table("", columns, [_event_row(each) for each in entries], (1,)),
        as_json=json,
    )


def _event_row(entry: dict[str, Any]) -> list[str]:
    artifact = str(entry.get("artifact", "")).rstrip("/").rpartition("/")[2]
    named = f"{artifact} {str(entry.get('manifest', ''))[:8]}".strip()
    return [
        f"{_local_time(entry['time']):%Y-%m-%d %H:%M:%S}",
        str(entry.get("revision") or "-"),
        entry["state"],
        named or "-",
        escape_unprintable(entry.get("detail") or "-"),
    ]


def logs(
    name: Name,
    follow: Annotated[
        bool, typer.Option("-f", "--follow", help="Follow the log until the server ends or Ctrl-C.")
    ] = False,
    lines: Annotated[int, typer.Option("-n", "--lines", help="Number of lines from the end.", min=0)] = 100,
    json: Json = False,
) -> None:
    """Show the server log of a deployment.

    In a pipe, the log is written unchanged.

    Example: trtspec logs quickstart --lines 20
    """
    from trtspec.deployment.base import fetch_log
    from trtspec.deployment.base import follow as follow_log
    from trtspec.deployment.log import last_lines, read_log

    if json and follow:
        raise TrtspecError("--json and --follow are mutually exclusive", hint="omit one of them")
    if follow:
        print_untrusted(follow_log(name, lines))
        note(f"{name} has ended")
        return
    path = fetch_log(name).log
    if json:
        found = last_lines(path, lines, MAX_LOG_BYTES)
        print_json({"format_version": 1, "name": name, "log_file": str(path), "lines": found})
    else:
        print_untrusted(read_log(path, lines))


def promote(name: Name, json: Json = False) -> None:
    """Promote the new revision of a rollout to all traffic.

    Example: trtspec promote quickstart
    """
    from trtspec.deployment import base

    document = base.promote(name)
    says = f"{name}: revision {document['revision']} serves"
    print_result(document, lambda: print_line(says, "green"), as_json=json)


def rollback(name: Name, json: Json = False) -> None:
    """Roll back a deployment to its previous revision.

    During a rollout this is immediate; otherwise the previous revision is started again.

    Example: trtspec rollback quickstart
    """
    from trtspec.deployment import base

    document = base.rollback(name, lambda state, what: note(f"  {state:<7} {what}"))
    files = f", with the files of revision {document['files_of']}" if document.get("files_of") else ""
    says = f"{name}: revision {document['revision']} serves{files}"
    print_result(document, lambda: print_line(says, "green"), as_json=json)


def stop(name: Name, json: Json = False) -> None:
    """Stop a deployment.

    Example: trtspec stop quickstart
    """
    from trtspec.deployment import base

    document = base.stop(name)
    says = f"{name} is {document['state']}" if document["was_running"] else f"{name} was not running"
    print_result(document, lambda: print_line(says), as_json=json)


def rm(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Names of ended deployments.", autocompletion=completing.deployments),
    ] = None,
    all_stopped: Annotated[bool, typer.Option("--all-stopped", help="Remove all ended deployments.")] = False,
    force: Annotated[bool, typer.Option("--force", "-f", help="Stop running deployments first.")] = False,
    json: Json = False,
) -> None:
    """Remove ended deployments.

    Removes their records, histories, logs and revisions, but not the artifacts.

    Example: trtspec rm quickstart
    """
    from trtspec.deployment.base import deployments, remove

    if bool(names) == all_stopped:
        hint = "trtspec rm NAME..., or trtspec rm --all-stopped; `trtspec ps` lists the deployments"
        raise DeployError("rm requires either names or --all-stopped", hint=hint)
    selected = [each["name"] for each in deployments() if each["state"] in ENDED] if all_stopped else names or []
    removed = []
    for name in dict.fromkeys(selected):
        found = remove(name, force=force)
        removed.append(found)
        if not json:
            print_line(f"{name} removed")
        if found["left"]:
            warn(f"it may still run: {found['left']}")
    if json:
        print_json({"format_version": 1, "removed": removed})
    elif not removed:
        print_line("no ended deployments")


panel = "Serve"
commands = (history, logs, promote, ps, rm, rollback, status, stop)
