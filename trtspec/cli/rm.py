# SPDX-License-Identifier: Apache-2.0
"""`trtspec rm`."""

from __future__ import annotations

from typing import Annotated

import typer

from trtspec.cli import completing
from trtspec.cli.options import Json


def rm(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="NAME",
            help="Names of ended deployments.",
            show_default=False,
            autocompletion=completing.deployments,
        ),
    ] = None,
    all_stopped: Annotated[bool, typer.Option("--all-stopped", help="Remove all ended deployments.")] = False,
    force: Annotated[bool, typer.Option("--force", "-f", help="Stop running deployments first.")] = False,
    json: Json = False,
) -> None:
    """Remove ended deployments.

    Removes their records, histories, logs and revisions, but not the artifacts.

    Example: trtspec rm quickstart
    """
    from trtspec.cli.render import note, print_json, print_line
    from trtspec.core.errors import DeployError
    from trtspec.deployment.base import deployments, remove

    if bool(names) == all_stopped:
        hint = "trtspec rm NAME..., or trtspec rm --all-stopped; `trtspec ps` lists the deployments"
        raise DeployError("rm requires either names or --all-stopped", hint=hint)
    ended = ("stopped", "failed", "dead")
    selected = [each["name"] for each in deployments() if each["state"] in ended] if all_stopped else names or []
    removed = []
    for name in dict.fromkeys(selected):
        found = remove(name, force=force)
        removed.append(found)
        if not json:
            print_line(f"{name} removed")
        if found["left"]:
            note(f"warning: it may still run: {found['left']}", "yellow")
    if json:
        print_json({"format_version": 1, "removed": removed})
    elif not removed:
        print_line("no ended deployments")


panel = "Serve"
command = rm
