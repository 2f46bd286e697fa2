# SPDX-License-Identifier: Apache-2.0
"""`trtspec status`."""

from __future__ import annotations

import time
from typing import Annotated, Any

import typer

from trtspec.cli.options import AnyName, Json

WATCH_S = 1.0


def status(
    name: AnyName = None,
    watch: Annotated[bool, typer.Option("--watch", help="Print each change until Ctrl-C.")] = False,
    json: Json = False,
) -> None:
    """Show a deployment's state and probe it with a request.

    Without a name, lists all deployments like `trtspec ps`. Exits with 1 if the deployment is not healthy.

    Example: trtspec status quickstart
    """
    from trtspec.cli.ps import ps
    from trtspec.cli.render import print_json
    from trtspec.core.errors import DeployError
    from trtspec.deployment.base import status as read_status

    if name is None:
        if watch:
            raise DeployError("--watch needs the name of a deployment", hint="`trtspec ps` lists them")
        return ps(json)
    if watch:
        follow(name, json)
    document = read_status(name)
    fine = document["state"] in ("live", "starting", "stopped")
    if json:
        print_json(document)
    else:
        show(document, "green" if fine else "red")
    raise typer.Exit(0 if fine else 1)


def follow(name: str, as_json: bool) -> None:
    """Print the state of a deployment whenever it changes; with `as_json`, one JSON document per line."""
    import json
    from datetime import datetime

    from trtspec.cli.render import print_line
    from trtspec.deployment.base import status as read_status

    last = ""
    while True:  # unbounded: until the user interrupts
        document = read_status(name)
        if (line := status_line(document)) != last:
            last = line
            print_line(json.dumps(document) if as_json else f"{datetime.now().astimezone():%H:%M:%S} {line}")
        time.sleep(WATCH_S)


def status_line(document: dict[str, Any]) -> str:
    """Return the state of a deployment and of its rollout in one line."""
    from trtspec.core.diagnostics import escape_unprintable

    line = f"revision {document.get('revision', 0)} of {document['name']} is {document['state']}"
    if rollout := document.get("rollout"):
        share = f" with {rollout['share']} % of the requests" if rollout["share"] else ""
        reason = f": {escape_unprintable(rollout['reason'])}" if rollout["reason"] else ""
        shadow = f"; shadow: {rollout['shadow'].get('verdict', '')}" if rollout.get("shadow") else ""
        line += f"; revision {rollout['revision']} is {rollout['state']}{share}{reason}{shadow}"
    return line


def show(document: dict[str, Any], style: str) -> None:
    """Show the state, the result of the probe, restarts, and the cause of an exit."""
    from trtspec.cli.render import print_line
    from trtspec.core.diagnostics import escape_unprintable

    cause = f": {escape_unprintable(document['cause'])}" if document.get("cause") else ""
    print_line(f"{document['name']} is {document['state']}{cause}", style)
    if rollout := document.get("rollout"):
        print_line(f"  {status_line({**document, 'rollout': rollout}).partition('; ')[2]}")
    if probe := document.get("probe"):
        result = f"responded in {probe['seconds']:.2f} s" if probe["ok"] else f"did not respond: {probe['error']}"
        print_line(f"  {document['endpoints']['http']} {result}")
    if document["state"] == "dead":
        show_end_of_log(document)
        return
    if reason := document.get("reason"):
        print_line(f"  restarted {document['restarts']} times, last because {escape_unprintable(reason)}")
    if sidecar := document.get("beside"):
        print_line(f"  last sidecar event: {escape_unprintable(sidecar)}")


def show_end_of_log(document: dict[str, Any]) -> None:
    """Show the last lines of a log that report problems, or the whole end of the log if the cause is unknown."""
    from trtspec.cli.render import print_line
    from trtspec.core.diagnostics import escape_unprintable
    from trtspec.deployment.log import problem_lines

    whole = "" if document.get("cause") else document["log"]
    if lines := (problem_lines(document["log"]) or whole).splitlines():
        print_line(f"end of {document['log_file']}:")
        for line in lines:
            print_line(escape_unprintable(line))
    else:
        print_line(f"the log contains no errors: {document['log_file']}")


panel = "Serve"
command = status
