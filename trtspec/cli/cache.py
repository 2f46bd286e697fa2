# SPDX-License-Identifier: Apache-2.0
"""`trtspec cache`: show, verify, prune or clear the store of built steps, or show and prune the team store."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trtspec.cli.layout import pluralize
from trtspec.cli.options import Json, parse_bytes, parse_seconds
from trtspec.cli.progress import counter
from trtspec.cli.render import note, print_line, print_result, show_table
from trtspec.core.errors import DigestMismatch, TrtspecError

if TYPE_CHECKING:
    from trtspec.cli.progress import Counter
    from trtspec.store.prune import PruneLimits, PruneResult, Usage
    from trtspec.store.store import Store


def cache(
    verify: Annotated[bool, typer.Option("--verify", help="Check the digest of every file.")] = False,
    clear: Annotated[
        bool,
        typer.Option(
            "--clear",
            help="Remove all entries and unused pulled artifacts; built artifacts keep their files.",
        ),
    ] = False,
    prune: Annotated[bool, typer.Option("--prune", help="Remove entries beyond --older-than or --max-size.")] = False,
    older_than: Annotated[
        str | None,
        typer.Option(metavar="AGE", help="With --prune: remove entries unused for this long, e.g. 30d or 12h."),
    ] = None,
    max_size: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="With --prune: remove least recently used entries above this size, e.g. 200GB."
        ),
    ] = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(metavar="ROOT", help="With --prune: keep the steps of this recipe or artifact."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the effect of --prune or --clear only.")] = False,
    remote: Annotated[bool, typer.Option("--remote", help="Use the team store (TRTSPEC_REMOTE).")] = False,
    json: Json = False,
) -> None:
    """Show, verify, prune or clear the store of built steps, and the artifacts that `deploy` has pulled.

    Entries that a running build needs and artifacts that a deployment uses are kept. A limit applies to the store and
    to the pulled artifacts.

    Example: trtspec cache --prune --older-than 30d --dry-run
    """
    from trtspec.planning.pipeline import open_store
    from trtspec.planning.roots import root_keys

    limits, store = _limits(clear, prune, older_than, max_size, dry_run), open_store()
    if keep and not prune:
        raise TrtspecError("--keep requires --prune", hint="e.g. --prune --max-size 500GB --keep recipes/mine.yaml")
    if remote and clear:
        raise TrtspecError("--clear is for this machine's store", hint="trtspec cache --remote --prune --max-size 0GB")
    with counter() as on_progress:  # shows activity: this may read every file of the store
        kept = root_keys(keep or [], lambda done, total: on_progress("read sources", done, total))
        if remote:
            document = _manage_remote(store, limits, kept, on_progress, verify=verify, dry_run=dry_run)
        else:
            document = _manage_local(store, limits, kept, clear=clear, verify=verify, dry_run=dry_run)
    print_result(document, lambda: show(document, limits is not None, verify, remote), as_json=json)
    if document["problems"]:
        raise typer.Exit(DigestMismatch.exit_code)


def _manage_local(
    store: Store, limits: PruneLimits | None, kept: Collection[str], *, clear: bool, verify: bool, dry_run: bool
) -> dict[str, Any]:
    """Prune, clear and check the store of this machine; return the JSON document.

    A recipe's bytes include entries shared with others.
    """
    from trtspec.store.prune import PruneResult, by_recipe, clear_rest, list_usage, remove, select_prunable

    removed = PruneResult()
    if limits:
        chosen = select_prunable(list_usage(store), limits, datetime.now(timezone.utc), kept)
        removed = remove(store, chosen, dry_run=dry_run)
        removed = clear_rest(store, removed, dry_run=dry_run) if clear else removed
    gone, left = _manage_pulled(limits, dry_run=dry_run)
    problems, uses = store.verify() if verify else [], list_usage(store)
    entries = [_entry(each, each.entry.name, each.entry.created, each.recipes) for each in uses]
    document = _document(str(store.root), entries, problems, removed, dry_run=dry_run)
    document["resumable_bytes"] = store.all_resumable_bytes()
    document["recipes"] = [{"name": name, "entries": count, "bytes": size} for name, count, size in by_recipe(uses)]
    document["freed_bytes"] += sum(each["bytes"] for each in gone)
    return document | {"pulled": left, "removed_pulled": [each["key"] for each in gone]}


def _manage_pulled(limits: PruneLimits | None, *, dry_run: bool) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Prune the pulled artifacts; return the removed ones and those that are left."""
    from trtspec.store.prune import select_prunable
    from trtspec.store.registries.pulled import list_pulled, pulled_dir, remove_pulled

    if not pulled_dir().is_dir():
        return [], []
    from trtspec.deployment.base import artifacts_in_use

    uses = list_pulled(artifacts_in_use())
    chosen = select_prunable(uses, limits, datetime.now(timezone.utc)) if limits else []
    gone = remove_pulled(chosen, dry_run=dry_run)
    left = uses if dry_run else [each for each in uses if each not in gone]
    documents = [
        [
            {
                "name": each.name,
                "key": each.key,
                "bytes": each.total_bytes,
                "last_used": each.last_used.isoformat(timespec="seconds"),
                "held": each.is_held,
            }
            for each in group
        ]
        for group in (gone, left)
    ]
    return documents[0], documents[1]


def _manage_remote(
    store: Store,
    limits: PruneLimits | None,
    kept: Collection[str],
    on_progress: Counter,
    *,
    verify: bool,
    dry_run: bool,
) -> dict[str, Any]:
    """Prune and check the team store; return the JSON document, with the same fields as for the local store."""
    from trtspec.store.prune import PruneResult, select_prunable
    from trtspec.store.team.environment import open_remote
    from trtspec.store.team.maintenance import check_remote, list_remote, remove_remote

    if (team := open_remote()) is None:
        hint = "export TRTSPEC_REMOTE=oci://HOST/NAME, or file:PATH"
        raise TrtspecError("--remote requires a team store", hint=hint)
    uses = list_remote(team.address, on_progress)
    chosen = select_prunable(uses, limits, datetime.now(timezone.utc), kept) if limits else []
    if chosen and not dry_run:
        remove_remote(team.address, [each.key for each in chosen], on_progress)
    gone = PruneResult(tuple(each.key for each in chosen), sum(each.total_bytes for each in chosen))
    left = uses if dry_run else [each for each in uses if each.key not in gone.keys]
    problems = check_remote(team.address, lambda key: store.peek(key).entry, on_progress) if verify else []
    entries = [_entry(each, each.name, each.created.isoformat(timespec="seconds")) for each in left]
    document = _document(team.address, entries, problems, gone, dry_run=dry_run)
    return document | {"pulled": [], "removed_pulled": []}


def _limits(
    clear: bool, prune: bool, older_than: str | None, max_size: str | None, dry_run: bool
) -> PruneLimits | None:
    """Return the limits of the entries to keep, or None to keep all; raise TrtspecError for conflicting options."""
    from trtspec.store.prune import PruneLimits

    age = parse_seconds(older_than, "--older-than") if older_than is not None else None
    size = parse_bytes(max_size, "--max-size") if max_size is not None else None
    is_limited = age is not None or size is not None
    if clear and (prune or is_limited):
        raise TrtspecError("--clear cannot be combined with --prune and its limits", hint="omit one of them")
    if prune != is_limited:
        raise TrtspecError("--prune and a limit require each other", hint="e.g. trtspec cache --prune --older-than 30d")
    if dry_run and not (clear or prune):
        raise TrtspecError("--dry-run requires --prune or --clear", hint="trtspec cache lists the entries")
    if clear:
        return PruneLimits(max_bytes=0)
    return PruneLimits(age, size) if prune else None


def _entry(usage: Usage, name: str, created: str, recipes: Sequence[str] = ()) -> dict[str, Any]:
    return {
        "name": name,
        "key": usage.key,
        "bytes": usage.total_bytes,
        "created": created,
        "last_used": usage.last_used.isoformat(timespec="seconds"),
        "recipes": list(recipes),
        "held": usage.is_held,
    }


def _document(
    root: str, entries: list[dict[str, Any]], problems: list[str], removed: PruneResult, *, dry_run: bool
) -> dict[str, Any]:
    """Return the fields that the JSON documents of both kinds of stores share, without recipes."""
    return {
        "format_version": 1,
        "ok": not problems,
        "root": root,
        "bytes": sum(each["bytes"] for each in entries),
        "resumable_bytes": 0,
        "entries": entries,
        "recipes": [],
        "problems": problems,
        "removed": list(removed.keys),
        "dry_run": dry_run,
        "freed_bytes": removed.freed_bytes,
        "linked_bytes": removed.linked_bytes,
    }


def show(document: dict[str, Any], was_removing: bool, was_verifying: bool, is_remote: bool) -> None:
    """Show the entries and recipes, and the results of removal and verification if requested."""
    from trtspec.store.plan import format_bytes

    entries, recipes = document["entries"], document["recipes"]
    rows = [
        (e["name"], e["key"][:12], format_bytes(e["bytes"]), e["last_used"][:10], ", ".join(e["recipes"]) or "-")
        for e in sorted(entries, key=lambda e: (e["name"], e["key"]))
    ]
    show_table(document["root"], ("step", "key", "size", "used", "recipes"), rows, (2,))
    if recipes:
        totals = [(each["name"], str(each["entries"]), format_bytes(each["bytes"])) for each in recipes]
        show_table("", ("recipe", "entries", "size"), totals, (1, 2))
    left = document["resumable_bytes"]
    rest = f", and {format_bytes(left)} from interrupted builds" if left else ""
    print_line(f"{pluralize(len(entries), 'entry', 'entries')}, {format_bytes(document['bytes'])}{rest}")
    if document["pulled"]:
        _show_pulled(document["pulled"])
    if was_removing:
        _show_removed(document)
        if is_remote and document["removed"] and not document["dry_run"]:
            note(
                "unused files are deleted later: by the registry, or after an hour (directory) or a day (bucket)",
                "dim",
            )
    if was_verifying:
        for problem in document["problems"]:
            print_line(problem, "red")
        if document["problems"]:
            print_line("the next build recreates them")
        elif is_remote:
            print_line("all documents are valid, and all files are present", "green")
        else:
            print_line("all files match their recorded digests", "green")


def _show_pulled(pulled: list[dict[str, Any]]) -> None:
    from trtspec.store.plan import format_bytes

    rows = [
        (e["name"], e["key"][:12], format_bytes(e["bytes"]), e["last_used"][:10], "yes" if e["held"] else "no")
        for e in sorted(pulled, key=lambda e: (e["name"], e["key"]))
    ]
    show_table("", ("pulled", "manifest", "size", "used", "in use"), rows, (2,))


def _show_removed(document: dict[str, Any]) -> None:
    from trtspec.store.plan import format_bytes

    would = "would be " if document["dry_run"] else ""
    linked = document["linked_bytes"]
    stays = f"; {format_bytes(linked)} more stay on disk because artifacts link to them" if linked else ""
    count = len(document["removed"]) + len(document["removed_pulled"])
    print_line(f"{count} {would}removed, {format_bytes(document['freed_bytes'])} {would}freed{stays}")
    if held := sum(entry["held"] for entry in document["entries"]):
        print_line(f"{held} are in use by a running build")


panel = "Machine"
command = cache
