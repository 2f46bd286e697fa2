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
    watch: Annotated[bool, typer.Option("--watch", help="Say what changes, until Ctrl-C.")] = False,
    json: Json = False,
) -> None:
    """Ask a deployment for a token and say how it fares; exit code 1 where it should answer and does not.

    Without a name, list all of them as `trtspec ps` does.

    Example: trtspec status quickstart
    """
    from trtspec.cli.ps import ps
    from trtspec.cli.render import print_json
    from trtspec.core.errors import DeployError
    from trtspec.deployment.base import status as ask

    if name is None:
        if watch:
            raise DeployError("--watch needs the name of a deployment", hint="`trtspec ps` lists them")
        return ps(json)
    if watch:
        follow(name, json)
    document = ask(name)
    fine = document["state"] in ("live", "starting", "stopped")
    if json:
        print_json(document)
    else:
        show(document, "green" if fine else "red")
    raise typer.Exit(0 if fine else 1)


def follow(name: str, as_json: bool) -> None:
    """Say how a deployment fares whenever that has changed; --json: one document a line."""
    import json
    from datetime import datetime

    from trtspec.cli.render import say
    from trtspec.deployment.base import status as ask

    told = ""
    while True:  # unbounded: until whoever watches has seen enough
        document = ask(name)
        if (line := standing(document)) != told:
            told = line
            say(json.dumps(document) if as_json else f"{datetime.now().astimezone():%H:%M:%S} {line}")
        time.sleep(WATCH_S)


def standing(document: dict[str, Any]) -> str:
    """Return where a deployment stands, and its rollout, in a line."""
    from trtspec.core.diagnostics import printable

    line = f"revision {document.get('revision', 0)} of {document['name']} is {document['state']}"
    if rollout := document.get("rollout"):
        share = f" with {rollout['share']} % of the requests" if rollout["share"] else ""
        reason = f": {printable(rollout['reason'])}" if rollout["reason"] else ""
        shadow = f"; shadow: {rollout['shadow'].get('verdict', '')}" if rollout.get("shadow") else ""
        line += f"; revision {rollout['revision']} is {rollout['state']}{share}{reason}{shadow}"
    return line


def show(document: dict[str, Any], style: str) -> None:
    """Show the state, what a request got, why it was restarted, and why a dead one died."""
    from trtspec.cli.render import say
    from trtspec.core.diagnostics import printable

    cause = f": {printable(document['cause'])}" if document.get("cause") else ""
    say(f"{document['name']} is {document['state']}{cause}", style)
    if rollout := document.get("rollout"):
        say(f"  {standing({**document, 'rollout': rollout}).partition('; ')[2]}")
    if probe := document.get("probe"):
        said = f"answered in {probe['seconds']:.2f} s" if probe["ok"] else f"did not answer: {probe['error']}"
        say(f"  {document['endpoints']['http']} {said}")
    if document["state"] == "dead":
        show_end_of_log(document)
        return
    if reason := document.get("reason"):
        say(f"  started again {document['restarts']} times, last because {printable(reason)}")
    if beside := document.get("beside"):
        say(f"  beside it, last: {printable(beside)}")


def show_end_of_log(document: dict[str, Any]) -> None:
    """Show the last lines of a log that report problems; a shutdown that follows a death reports none."""
    from trtspec.cli.render import say
    from trtspec.core.diagnostics import printable
    from trtspec.deployment.exit_cause import telling_lines

    whole = "" if document.get("cause") else document["log"]
    if lines := (telling_lines(document["log"]) or whole).splitlines():
        say(f"the end of {document['log_file']}:")
        for line in lines:
            say(printable(line))
    else:
        say(f"its log reports no problem: {document['log_file']}")


command = status
