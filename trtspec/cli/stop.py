# SPDX-License-Identifier: Apache-2.0
"""`trtspec stop`."""

from __future__ import annotations

from trtspec.cli.options import Json, Name


def stop(name: Name, json: Json = False) -> None:
    """Stop a deployment.

    Example: trtspec stop quickstart
    """
    from trtspec.cli.render import print_json, print_line
    from trtspec.deployment.base import stop as end

    document = end(name)
    if json:
        print_json(document)
    else:
        print_line(f"{name} is {document['state']}" if document["was_running"] else f"{name} was not running")


panel = "Serve"
command = stop
