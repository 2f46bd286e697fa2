# SPDX-License-Identifier: Apache-2.0
"""`trtspec ps`."""

from __future__ import annotations

from typing import Any

from trtspec.cli.options import Json


def ps(json: Json = False) -> None:
    """List the deployments, including ended ones.

    `trtspec status NAME` checks whether a deployment responds.

    Example: trtspec ps
    """
    from trtspec.cli.render import print_json
    from trtspec.deployment.base import deployments

    found = deployments()
    if json:
        print_json({"format_version": 1, "deployments": found})
    else:
        show(found)


def show(deployments: list[dict[str, Any]]) -> None:
    """Show one row per deployment, with endpoints if it is live or starting."""
    from trtspec.cli.render import note, print_line, show_table

    columns = ("name", "state", "backend", "method", "pid", "since", "endpoints")
    if deployments:
        show_table("", columns, [_row(each) for each in deployments], (4,))
    else:
        print_line("no deployments")
    for each in deployments:
        if error := each.get("error"):
            note(f"warning: {each['name']}: {error}", "yellow")


def _row(deployment: dict[str, Any]) -> list[str]:
    runs = deployment["state"] in ("live", "starting")
    endpoints = "\n".join(deployment["endpoints"].values()) if runs else ""
    known = [deployment.get(key) for key in ("backend", "method")]
    pid = str(deployment["pid"]) if runs else ""
    cells = [*known, pid, _local_time(deployment.get("since")), endpoints]
    return [deployment["name"], deployment["state"], *(cell or "-" for cell in cells)]


def _local_time(utc: str | None) -> str:
    from datetime import datetime

    return f"{datetime.fromisoformat(utc).astimezone():%Y-%m-%d %H:%M}" if utc else ""


panel = "Serve"
command = ps
