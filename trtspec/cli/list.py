# SPDX-License-Identifier: Apache-2.0
"""`trtspec list`: list the artifacts in a registry's repository or an OCI image layout."""

from __future__ import annotations

from typing import Any

import trtspec
from trtspec.cli.layout import pluralize
from trtspec.cli.options import Json, Location
from trtspec.cli.progress import counter
from trtspec.cli.render import print_line, print_result, show_table


def list(location: Location, json: Json = False) -> None:
    """List the artifacts in a registry's repository or an OCI image layout.

    Example: trtspec list oci://registry.example.com/team/quickstart
    """
    with counter() as on_progress:
        found = trtspec.list_artifacts(location, on_progress=on_progress)
    document = {"format_version": 1, "location": location, "artifacts": [each.as_dict() for each in found]}
    print_result(document, lambda: show(document), as_json=json)


def show(document: dict[str, Any]) -> None:
    """Show a row for each tag; a tag that is not an artifact has the reason instead."""
    from trtspec.store.plan import format_bytes

    artifacts = document["artifacts"]
    rows = [
        (
            each["tag"],
            each["name"] or "-",
            format_bytes(each["bytes"]),
            each["manifest"][:19],
            str(each["signatures"] or "-"),
            each["problem"],
        )
        for each in artifacts
    ]
    if rows:
        show_table("", ("tag", "recipe", "size", "manifest", "signatures", ""), rows, (2,))
    print_line(f"{pluralize(len(artifacts), 'tag')} in {document['location']}")


panel = "Serve"
command = list
