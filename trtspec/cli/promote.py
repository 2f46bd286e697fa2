# SPDX-License-Identifier: Apache-2.0
"""`trtspec promote`."""

from __future__ import annotations

from trtspec.cli.options import Json, Name


def promote(name: Name, json: Json = False) -> None:
    """Promote the new revision of a rollout to all traffic.

    Example: trtspec promote quickstart
    """
    from trtspec.cli.render import print_json, print_line
    from trtspec.deployment.base import promote as decide

    document = decide(name)
    if json:
        print_json(document)
    else:
        print_line(f"{name}: revision {document['revision']} serves", "green")


panel = "Serve"
command = promote
