# SPDX-License-Identifier: Apache-2.0
"""`trtspec status`."""

from __future__ import annotations

import typer

from trtspec.cli.options import Json, Name


def status(name: Name, json: Json = False) -> None:
    """Ask a deployment for a token and say how it fares; exit code 1 where it should answer and does not.

    Example: trtspec status quickstart
    """
    from trtspec.cli.render import print_json, say
    from trtspec.deploy.base import status as ask

    document = ask(name)
    if json:
        print_json(document)
    fine = document["state"] in ("live", "starting", "stopped")
    say(f"{name} is {document['state']}", "green" if fine else "red")
    probe = document.get("probe")
    if probe:
        said = f"answered in {probe['seconds']:.2f} s" if probe["ok"] else f"did not answer: {probe['error']}"
        say(f"  {document['endpoints']['http']} {said}")
    if log := document.get("log"):
        say(f"the end of {document['log_file']}:\n{log}")
    raise typer.Exit(0 if fine else 1)


command = status
