# SPDX-License-Identifier: Apache-2.0
"""`trtspec status`."""

from __future__ import annotations

from typing import Any

import typer

from trtspec.cli.options import AnyName, Json


def status(name: AnyName = None, json: Json = False) -> None:
    """Ask a deployment for a token and say how it fares; exit code 1 where it should answer and does not.

    Without a name, list all of them as `trtspec ps` does.

    Example: trtspec status quickstart
    """
    from trtspec.cli.ps import ps
    from trtspec.cli.render import print_json
    from trtspec.deploy.base import status as ask

    if name is None:
        return ps(json)
    document = ask(name)
    fine = document["state"] in ("live", "starting", "stopped")
    if json:
        print_json(document)
    else:
        show(document, "green" if fine else "red")
    raise typer.Exit(0 if fine else 1)


def show(document: dict[str, Any], style: str) -> None:
    """Show the state, what a request got, and of a server that died the end of its log."""
    from trtspec.cli.render import say
    from trtspec.diagnostics import printable

    say(f"{document['name']} is {document['state']}", style)
    if probe := document.get("probe"):
        said = f"answered in {probe['seconds']:.2f} s" if probe["ok"] else f"did not answer: {probe['error']}"
        say(f"  {document['endpoints']['http']} {said}")
    if log := document.get("log"):
        say(f"the end of {document['log_file']}:")
        for line in log.splitlines():
            say(printable(line))


command = status
