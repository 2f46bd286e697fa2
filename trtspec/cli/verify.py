# SPDX-License-Identifier: Apache-2.0
"""`trtspec verify`: verify an artifact against its target and evaluate its gates."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import trtspec
from trtspec.bench.gates import MAX_RUNS
from trtspec.cli.options import AllowCode, ArtifactOrLocation, Json, ManifestDigest, Prompts, SkipGate, Undecided
from trtspec.cli.progress import counter
from trtspec.cli.render import note, print_line, print_result, show_table, warn
from trtspec.core.errors import TrtspecError
from trtspec.core.hashing import file_sha256

if TYPE_CHECKING:
    from trtspec.bench.gates import SkippedCheck, VerificationReport
    from trtspec.store.signatures.evaluate import AcceptedSignature


def verify(
    artifact: ArtifactOrLocation,
    source: Annotated[Path | None, typer.Option(help="Current path of the target's source, if it was moved.")] = None,
    prompts: Prompts = None,
    max_tokens: Annotated[int, typer.Option(help="New tokens per prompt.", min=1)] = 64,
    runs: Annotated[
        int, typer.Option(help="Maximum runs per side; more than one only for a close speed-up gate.", min=1)
    ] = MAX_RUNS,
    allow_code: AllowCode = None,
    skip_gate: SkipGate = None,
    undecided: Undecided = None,
    rehash: Annotated[bool, typer.Option("--rehash", help="Hash every file again, including unchanged ones.")] = False,
    report: Annotated[Path | None, typer.Option(help="Report file (default: in the artifact).")] = None,
    manifest: ManifestDigest = None,
    signature: Annotated[
        Path | None,
        typer.Option(metavar="POLICY", help="Only verify the signature against this policy; no weights are read."),
    ] = None,
    json: Json = False,
) -> None:
    """Verify an artifact against its target and evaluate its gates.

    With --signature, only the manifest, its signatures and its provenance are read.

    Example: trtspec verify build/quickstart
    """
    from trtspec.bench.documents import REPORT

    if signature:
        show_signature(trtspec.verify_signature(artifact, signature, manifest=manifest or ""), artifact, json=json)
        return
    refuse_location(artifact)
    with counter() as on_progress:
        verification = trtspec.verify(
            artifact,
            source=source,
            prompts=prompts,
            max_tokens=max_tokens,
            max_runs=runs,
            skip_gates=skip_gate or (),
            rehash=rehash,
            report=report,
            manifest=manifest or "",
            on_progress=on_progress,
            on_unwritten=warn,
        )

    def show() -> None:
        show_checks(verification)
        for warning in verification.warnings:
            warn(warning)
        if verification.speedup:
            print_line(f"with speculation {verification.speedup}")
        undecided = ", ".join(check.name for check in verification.undecided)
        if not verification.ok:
            treated = f"; undecided, treated as failed: {undecided}" if undecided else ""
            print_line(f"{artifact}: NOT verified{treated}", "red")
        elif undecided:
            unsure = f"verified except {undecided}: undecided (--undecided fail treats this as a failure)"
            print_line(f"{artifact}: {unsure}", "yellow")
        else:
            print_line(f"{artifact}: verified", "green")
        written = report or Path(artifact) / REPORT
        if verification.ok and written.is_file():
            note(f"{written}: sha256:{file_sha256(written)}", "dim")

    print_result(verification.as_dict(), show, as_json=json)
    raise typer.Exit(verification.failure.exit_code if verification.failure else 0)


def refuse_location(artifact: str) -> None:
    """Raise TrtspecError if an artifact is at a location: its files are not on this machine."""
    from trtspec.store.registries.repository import is_location

    if is_location(artifact):
        message = f"{artifact} is a location; only its signature can be verified there"
        raise TrtspecError(message, hint=f"trtspec pull {artifact}, or add --signature POLICY")


def show_signature(accepted: AcceptedSignature, artifact: str, *, json: bool) -> None:
    """Show an accepted signature, and what was and was not checked."""

    def show() -> None:
        show_table("", ("check", "details"), [(check.name, check.detail) for check in accepted.checks])
        note("files were not read: `trtspec verify`, `pull` and `deploy` compare them with the manifest", "dim")
        print_line(f"{artifact}: signed by {accepted.signer}", "green")

    print_result(accepted.as_dict(), show, as_json=json)


def show_checks(found: VerificationReport) -> None:
    """Show each check with its details, then the skipped checks with their reasons."""
    rows = [(check.name, "FAILS" if check.state == "fails" else check.state, check.detail) for check in found.checks]
    show_table("", ("check", "", "details"), rows)
    for line in skipped_check_lines(found.left_out):
        print_line(line, "yellow")


def skipped_check_lines(left_out: Sequence[SkippedCheck]) -> list[str]:
    """Return one line per reason, with the names of the checks skipped for that reason."""
    reasons = dict.fromkeys(each.why for each in left_out)
    return [f"{', '.join(each.name for each in left_out if each.why == why)}: {why}" for why in reasons]


panel = "Build"
everyday = 4
command = verify
