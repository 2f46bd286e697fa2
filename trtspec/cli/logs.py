# SPDX-License-Identifier: Apache-2.0
"""`trtspec logs`."""

from __future__ import annotations

from typing import Annotated

import typer

from trtspec.cli.options import Json, Name

MAX_DOCUMENT_BYTES = 16 << 20


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
    from trtspec.cli.render import note, print_json, print_untrusted
    from trtspec.core.errors import TrtspecError
    from trtspec.deployment.base import fetch_log
    from trtspec.deployment.journal import DeploymentJournal
    from trtspec.deployment.log import follow_log, last_lines, read_log

    if json and follow:
        raise TrtspecError("--json and --follow are mutually exclusive", hint="omit one of them")
    if follow:
        print_untrusted(follow_log(DeploymentJournal(name), lines))
        note(f"{name} has ended")
        return
    path = fetch_log(name).log
    if json:
        found = last_lines(path, lines, MAX_DOCUMENT_BYTES)
        print_json({"format_version": 1, "name": name, "log_file": str(path), "lines": found})
    else:
        print_untrusted(read_log(path, lines))


panel = "Serve"
command = logs
