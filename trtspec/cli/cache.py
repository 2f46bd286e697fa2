# SPDX-License-Identifier: Apache-2.0
"""`trtspec cache`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from trtspec.cli.options import Json

if TYPE_CHECKING:
    from trtspec.graph.store import Store


def cache(
    verify: Annotated[bool, typer.Option("--verify", help="Hash every file of the store.")] = False,
    clear: Annotated[bool, typer.Option("--clear", help="Throw everything away; artifacts keep their files.")] = False,
    json: Json = False,
) -> None:
    """Show, verify or clear the store of built steps.

    Example: trtspec cache --verify
    """
    from trtspec.cli.progress import counter
    from trtspec.cli.render import print_json
    from trtspec.errors import DigestMismatch
    from trtspec.pipeline import open_store

    store = open_store()
    with counter():  # which says that it is at work: every file of a store may be read
        removed = store.gc(keep=set()) if clear else []
        problems = store.verify() if verify else []
    if json:
        listed = [{"name": e.name, "key": e.key, "bytes": e.total_bytes, "created": e.created} for e in store.entries()]
        found = {"root": str(store.root), "entries": listed, "problems": problems, "removed": removed}
        print_json({"format_version": 1, "ok": not problems, **found})
    else:
        show(store, len(removed) if clear else None, problems if verify else None)
    if problems:
        raise typer.Exit(DigestMismatch.exit_code)


def show(store: Store, removed: int | None, problems: list[str] | None) -> None:
    """Show what lies there, and what was removed or found wrong, which is None where nobody asked."""
    from trtspec.cli.layout import counted
    from trtspec.cli.render import say, show_table
    from trtspec.disk import amount

    entries = store.entries()
    rows = [
        (entry.name, entry.key[:12], amount(entry.total_bytes))
        for entry in sorted(entries, key=lambda e: (e.name, e.key))
    ]
    show_table(str(store.root), ("step", "key", "size"), rows, (2,))
    gone = "" if removed is None else f"; {removed} removed"
    say(f"{counted(len(entries), 'entry', 'entries')}, {amount(store.size())}{gone}")
    for problem in problems or ():
        say(problem, "red")
    if problems:
        say("the next build makes them again")
    elif problems is not None:
        say("every file is what was recorded", "green")


command = cache
