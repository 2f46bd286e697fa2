# SPDX-License-Identifier: Apache-2.0
"""`trtspec rollback`."""

from __future__ import annotations

from trtspec.cli.options import Json, Name


def rollback(name: Name, json: Json = False) -> None:
    """Roll back a deployment to its previous revision.

    During a rollout this is immediate; otherwise the previous revision is started again.

    Example: trtspec rollback quickstart
    """
    from trtspec.cli.render import note, print_json, print_line
    from trtspec.deployment.base import rollback as decide

    document = decide(name, lambda state, what: note(f"  {state:<7} {what}"))
    if json:
        print_json(document)
    else:
        files = f", with the files of revision {document['files_of']}" if document.get("files_of") else ""
        print_line(f"{name}: revision {document['revision']} serves{files}", "green")


panel = "Serve"
command = rollback
