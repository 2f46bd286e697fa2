# SPDX-License-Identifier: Apache-2.0
"""`trtspec pull`: pull an artifact from a registry or an OCI image layout."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import trtspec
from trtspec.cli.options import Json, Location, ManifestDigest, SignaturePolicy
from trtspec.cli.progress import transfer_bars
from trtspec.cli.render import print_line, print_result


def pull(
    location: Location,
    out: Annotated[Path | None, typer.Option(help="Artifact directory (default: build/NAME).")] = None,
    manifest: ManifestDigest = None,
    signature: SignaturePolicy = None,
    json: Json = False,
) -> None:
    """Pull an artifact from a registry or an OCI image layout, and verify it.

    Files that this machine has are not fetched again. An interrupted pull continues where it was.

    Example: trtspec pull oci://registry.example.com/team/quickstart:v1
    """
    from trtspec.store.plan import format_bytes

    with transfer_bars() as on_progress:
        pulled = trtspec.pull(
            location, out=out, manifest=manifest or "", signature=signature or "", on_progress=on_progress
        )

    def show() -> None:
        fetched, total = format_bytes(pulled.fetched_bytes), format_bytes(pulled.total_bytes)
        print_line(f"  manifest  {pulled.manifest}")
        print_line(f"  digest    {pulled.digest}")
        if pulled.signature:
            print_line(f"  signed    by {pulled.signature.signer}")
        done = "is unchanged" if pulled.status == "unchanged" else f"was pulled: {fetched} of {total} fetched"
        print_line(f"{pulled.artifact} {done}", "green")

    print_result(pulled.as_dict(), show, as_json=json)


panel = "Serve"
command = pull
