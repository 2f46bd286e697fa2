# SPDX-License-Identifier: Apache-2.0
"""`trtspec cache`."""

from __future__ import annotations

from typing import Annotated

import typer

from trtspec.cli.options import Json


def cache(
    verify: Annotated[bool, typer.Option("--verify", help="Hash every file of the store.")] = False,
    clear: Annotated[bool, typer.Option("--clear", help="Throw everything away; artifacts keep their files.")] = False,
    json: Json = False,
) -> None:
    """Show, verify or clear the store of built steps.

    Example: trtspec cache --verify
    """
    from trtspec.cli.render import print_json, say, show_table
    from trtspec.disk import amount
    from trtspec.errors import DigestMismatch
    from trtspec.pipeline import open_store

    store = open_store()
    removed = store.gc(keep=set()) if clear else []
    problems = store.verify() if verify else []
    entries = store.entries()
    if json:
        listed = [{"name": e.name, "key": e.key, "bytes": e.total_bytes, "created": e.created} for e in entries]
        found = {"root": str(store.root), "entries": listed, "problems": problems, "removed": removed}
        print_json({"format_version": 1, "ok": not problems, **found})
    rows = [(entry.name, entry.key[:12], amount(entry.total_bytes)) for entry in entries]
    show_table(str(store.root), ("step", "key", "size"), rows, (2,))
    say(f"{len(entries)} entries, {amount(store.size())}" + (f"; {len(removed)} removed" if clear else ""))
    for problem in problems:
        say(problem, "red")
    if problems:
        say("the next build makes them again")
        raise typer.Exit(DigestMismatch.exit_code)
    if verify:
        say("every file is what was recorded", "green")


command = cache
