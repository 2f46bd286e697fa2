# SPDX-License-Identifier: Apache-2.0
"""`trtspec history`."""

from __future__ import annotations

from typing import Any

from trtspec.cli.options import Json, Name


def history(name: Name, json: Json = False) -> None:
    """Show a deployment's history.

    Lists the events of all revisions, oldest first.

    Example: trtspec history quickstart
    """
    from trtspec.cli.render import print_json, show_table
    from trtspec.deployment.base import history as read

    entries = read(name)
    if json:
        print_json({"format_version": 1, "name": name, "history": entries})
    else:
        show_table("", ("time", "revision", "state", "artifact", "event"), [_row(each) for each in entries], (1,))


def _row(entry: dict[str, Any]) -> list[str]:
    from datetime import datetime

    from trtspec.core.diagnostics import escape_unprintable

    time = f"{datetime.fromisoformat(entry['time']).astimezone():%Y-%m-%d %H:%M:%S}"
    artifact = str(entry.get("artifact", "")).rstrip("/").rpartition("/")[2]
    manifest = str(entry.get("manifest", ""))[:8]
    named = f"{artifact} {manifest}".strip()
    return [
        time,
        str(entry.get("revision") or "-"),
        entry["state"],
        named or "-",
        escape_unprintable(entry.get("detail") or "-"),
    ]


panel = "Serve"
command = history
