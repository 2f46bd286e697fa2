# SPDX-License-Identifier: Apache-2.0
"""Small provenance and bills of materials for tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from trtspec.store.artifact import manifest_sha256
from trtspec.store.signatures.attestations import Attestations, write_attestations
from trtspec.store.signatures.envelope import BOM, PROVENANCE, SubjectName, dump, render_statement


def predicate() -> dict[str, Any]:
    """Return the predicate of a provenance."""
    return {
        "buildDefinition": {
            "buildType": "urn:trtspec:build:1",
            "externalParameters": {"recipe": {"name": "tiny"}},
            "internalParameters": {"tools": {"trtspec": "0.2.0", "torch": "2.13.0+cpu"}},
            "resolvedDependencies": [
                {"name": "recipe:tiny.yaml", "digest": {"sha256": "a" * 64}},
                {
                    "name": "source:target",
                    "uri": "https://huggingface.co/team/model/tree/abc",
                    "digest": {"gitCommit": "abc"},
                },
            ],
        },
        "runDetails": {"builder": {"id": "urn:trtspec:builder:local"}},
    }


def write_documents(root: Path, found: dict[str, Any] | None = None) -> None:
    """Write an artifact's provenance, with a predicate, and its bill of materials."""
    digest = manifest_sha256(root)
    statement = render_statement([SubjectName("manifest.json", digest)], PROVENANCE, found or predicate())
    component = {"name": "tiny", "type": "machine-learning-model", "hashes": [{"alg": "SHA-256", "content": digest}]}
    bom = dump({"bomFormat": "CycloneDX", "specVersion": "1.6", "metadata": {"component": component}})
    write_attestations(root, Attestations({}, {PROVENANCE: statement, BOM: bom}))


def load(path: Path) -> Any:
    """Return a JSON document."""
    return json.loads(path.read_bytes())
