# SPDX-License-Identifier: Apache-2.0
"""`trtspec sign`: sign an artifact with a key pair, or without a key in CI."""

from __future__ import annotations

from typing import Annotated

import typer

import trtspec
from trtspec.cli.options import ArtifactOrLocation, Json, ManifestDigest
from trtspec.cli.progress import transfer_bars
from trtspec.cli.render import note, print_line, print_result


def sign(
    artifact: ArtifactOrLocation,
    key: Annotated[
        str | None, typer.Option(metavar="FILE", help="Private key in PEM: a file, or env://NAME of a variable.")
    ] = None,
    keyless: Annotated[bool, typer.Option("--keyless", help="Sign with the identity of this CI job.")] = False,
    identity_token: Annotated[
        str | None, typer.Option(metavar="env://NAME", help="Variable with the identity token of a keyless signature.")
    ] = None,
    location: Annotated[
        str | None, typer.Option(metavar="LOCATION", help="The only address that the signature is for.")
    ] = None,
    manifest: ManifestDigest = None,
    json: Json = False,
) -> None:
    """Sign an artifact, its provenance and its bill of materials.

    The signatures are Sigstore bundles. They are written into the artifact, and `push` attaches them to the image. The
    artifact at a location is signed there.

    Example: trtspec sign build/quickstart --key key.pem
    """
    with transfer_bars() as on_progress:
        signed = trtspec.sign(
            artifact,
            key=key or "",
            keyless=keyless,
            identity_token=identity_token or "",
            location=location or "",
            manifest=manifest or "",
            on_progress=on_progress,
        )

    def show() -> None:
        print_line(f"  manifest  {signed.manifest}")
        print_line(f"  digest    {signed.digest}")
        for bundle in signed.bundles:
            note(f"  {bundle}")
        print_line(f"{artifact} was signed with {signed.signer}", "green")

    print_result(signed.as_dict(), show, as_json=json)


panel = "Serve"
command = sign
