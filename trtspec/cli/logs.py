# SPDX-License-Identifier: Apache-2.0
"""`trtspec logs`."""

from __future__ import annotations

from typing import Annotated

import typer

from trtspec.cli.options import Json, Name

MAX_DOCUMENT_BYTES = 16 << 20


def logs(
    name: Name,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until the server ends, or Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option("-n", "--lines", help="How many lines of its end.", min=0)] = 100,
    json: Json = False,
) -> None:
    """Show what the server of a deployment wrote to its log; in a pipe byte by byte.

    Example: trtspec logs quickstart --lines 20
    """
    from trtspec.cli.render import note, print_json, show_foreign
    from trtspec.core.errors import TrtspecError
    from trtspec.deployment.log import follow_log, last_lines, log_of, read_log

    if json and follow:
        raise TrtspecError("--json is one document, and --follow has no end", hint="leave one of them out")
    path = log_of(name)
    if json:
        found = last_lines(path, lines, MAX_DOCUMENT_BYTES)
        print_json({"format_version": 1, "name": name, "log_file": str(path), "lines": found})
        return
    show_foreign(follow_log(name, lines) if follow else read_log(path, lines))
    if follow:
        note(f"{name} has ended")


command = logs
