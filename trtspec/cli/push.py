# SPDX-License-Identifier: Apache-2.0
"""`trtspec push`: push an artifact to a registry or an OCI image layout."""

from __future__ import annotations

import trtspec
from trtspec.cli.layout import pluralize
from trtspec.cli.options import Artifact, Json, Location, ManifestDigest
from trtspec.cli.progress import transfer_bars
from trtspec.cli.render import note, print_line, print_result


def push(artifact: Artifact, location: Location, manifest: ManifestDigest = None, json: Json = False) -> None:
    """Push an artifact to a registry or an OCI image layout.

    Only files that the location lacks are sent. An interrupted push continues where it was.

    Example: trtspec push build/quickstart oci://registry.example.com/team/quickstart:v1
    """
    from trtspec.store.artifact_paths import ATTESTATIONS
    from trtspec.store.plan import format_bytes

    with transfer_bars() as on_progress:
        pushed = trtspec.push(artifact, location, manifest=manifest or "", on_progress=on_progress)

    def show() -> None:
        sent, total = format_bytes(pushed.sent_bytes), format_bytes(pushed.total_bytes)
        print_line(f"  manifest  {pushed.manifest}")
        print_line(f"  digest    {pushed.digest}")
        if pushed.attestations:
            print_line(f"  attached  {pluralize(pushed.attestations, 'attestation')}")
        elif (artifact / ATTESTATIONS).is_dir():
            note("  this kind of location does not keep signatures and provenance", "yellow")
        print_line(f"pushed {pushed.files} files to {location}: {sent} of {total} sent", "green")

    print_result(pushed.as_dict(), show, as_json=json)


panel = "Serve"
command = push
