# SPDX-License-Identifier: Apache-2.0
"""`trtspec verify`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from trtspec.bench.speedup import MAX_RUNS
from trtspec.cli.options import AllowCode, Artifact, Json, ManifestDigest, Prompts, SkipGate, Undecided

if TYPE_CHECKING:
    from trtspec.bench.verification_report import Check, LeftOut, Verification


def verify(
    artifact: Artifact,
    source: Annotated[Path | None, typer.Option(help="Where the target's source lies now, if it was moved.")] = None,
    prompts: Prompts = None,
    max_tokens: Annotated[int, typer.Option(help="New tokens a prompt.", min=1)] = 64,
    runs: Annotated[
        int, typer.Option(help="Runs of each side at most: one, and more while a speed-up may miss its limit.", min=1)
    ] = MAX_RUNS,
    allow_code: AllowCode = None,
    skip_gate: SkipGate = None,
    undecided: Undecided = None,
    reread: Annotated[
        bool, typer.Option("--reread", help="Read every file, those too that have not changed since they were read.")
    ] = False,
    report: Annotated[Path | None, typer.Option(help="Where the report goes, instead of into the artifact.")] = None,
    manifest: ManifestDigest = None,
    json: Json = False,
) -> None:
    """Prove that an artifact says what its target says, and that its gates hold.

    Example: trtspec verify build/quickstart
    """
    from trtspec.bench.gates import check_gate_names
    from trtspec.bench.verification_report import REPORT
    from trtspec.bench.verify import verify_artifact
    from trtspec.cli.progress import counter
    from trtspec.cli.render import note, print_json, say
    from trtspec.core.hashing import file_sha256
    from trtspec.store.manifest import parse_expected

    with counter() as on_progress:
        verification = verify_artifact(
            artifact,
            source=source,
            prompts_file=prompts,
            max_tokens=max_tokens,
            max_runs=runs,
            skip=check_gate_names(skip_gate or ()),
            report=report,
            reread=reread,
            expected=parse_expected(manifest) if manifest else "",
            on_progress=on_progress,
            on_unwritten=lambda error: note(f"warning: {error}", "yellow"),
        )
    if json:
        print_json(verification.as_dict())
    else:
        show_checks(verification)
        for warning in verification.warnings:
            note(f"warning: {warning}", "yellow")
        if verification.speedup:
            say(f"with speculation {verification.speedup}")
        say(*said_of(artifact, verification))
        written = report or artifact / REPORT
        if verification.ok and written.is_file():
            note(f"{written}: sha256:{file_sha256(written)}", "dim")
    raise typer.Exit(verification.failure.exit_code if verification.failure else 0)


def show_checks(found: Verification) -> None:
    """Show each check with what was found, and below what was left out and why."""
    from trtspec.cli.render import say, show_table

    rows = [(check.name, state_of(check), check.detail) for check in found.checks]
    show_table("", ("check", "", "what was found"), rows)
    for line in left_out_lines(found.left_out):
        say(line, "yellow")


def state_of(check: Check) -> str:
    """Return a check's state as people see it."""
    return "FAILS" if check.state == "fails" else check.state


def said_of(artifact: Path, found: Verification) -> tuple[str, str]:
    """Return the last line of a verification and its colour."""
    undecided = ", ".join(check.name for check in found.undecided)
    if not found.ok:
        return f"{artifact}: NOT verified" + (f"; undecided, which fails here: {undecided}" if undecided else ""), "red"
    if undecided:
        return f"{artifact}: verified but for {undecided}, undecided (--undecided fail makes that fail)", "yellow"
    return f"{artifact}: verified", "green"


def left_out_lines(left_out: Sequence[LeftOut]) -> list[str]:
    """Return what to say of the checks that were not made, those of one reason on a line."""
    reasons = dict.fromkeys(each.why for each in left_out)
    return [f"{', '.join(each.name for each in left_out if each.why == why)}: {why}" for why in reasons]


command = verify
