# SPDX-License-Identifier: Apache-2.0
"""Inputs of the checklist: manifest, verification, saved documents, deployments and Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path

from trtspec.bench.artifact import artifact_prompts
from trtspec.bench.documents import (
    SavedDocument,
    list_documents,
    mismatch_reason,
    prompts_sha256,
    read_document,
    recorded_manifest,
    target_sha256,
)
from trtspec.bench.gates import VerificationReport
from trtspec.bench.verification_report import load_verification, read_untrusted_report
from trtspec.core.errors import TrtspecError
from trtspec.deployment.journal import DeploymentJournal, DeploymentRecord, deployment_names
from trtspec.recipe.resolve import ResolvedRecipe
from trtspec.report.monitoring.prometheus import Prometheus
from trtspec.store.artifact import Manifest, load_manifest, manifest_sha256
from trtspec.store.artifact_paths import MANIFEST


@dataclass(frozen=True)
class ReadinessInputs:
    """Inputs of the checklist.

    `published` is the time at which the artifact was written. `report` is the verification by this user on this
    machine, and `verified` its time. `has_copy` is true if the artifact has a report from elsewhere, which is not
    trusted.
    """

    root: Path
    manifest: Manifest
    manifest_sha256: str
    published: datetime
    report: VerificationReport | None
    verified: datetime | None
    has_copy: bool
    documents: Sequence[SavedDocument]
    deployed: Sequence[DeploymentRecord]
    prometheus: Prometheus | None

    @property
    def recipe(self) -> ResolvedRecipe:
        """Return the resolved recipe."""
        return self.manifest.recipe

    @property
    def drafts(self) -> bool:
        """Return whether the recipe speculates."""
        return self.recipe.speculation.method != "none"

    @cached_property
    def prompts(self) -> str:
        """Return the digest of the artifact's default prompts."""
        return prompts_sha256(prompt.text for prompt in artifact_prompts(self.root, None))

    def of_kind(self, kind: str) -> list[SavedDocument]:
        """Return the documents of a kind, matching ones first, then by decreasing time."""
        found = [each for each in self.documents if each.kind == kind]
        return sorted(found, key=lambda each: (not self.objection(each), each.time), reverse=True)

    def objection(self, document: SavedDocument) -> str:
        """Return the reason why a document does not match this artifact, or ""."""
        if against := mismatch_reason(document.values, self.manifest, self.manifest_sha256):
            return against
        is_named = document.text("target", "sha256") or recorded_manifest(document.values)
        return "" if is_named or document.time >= self.published else "older than the artifact"

    def remark(self, document: SavedDocument) -> str:
        """Return a note on a matching document, or ""."""
        digest = document.text("prompts", "sha256") or document.text("prompt_set", "sha256")
        return "with prompts other than the artifact's" if digest and digest != self.prompts else ""


def gather(root: Path, others: Sequence[Path], prometheus: Prometheus | None) -> ReadinessInputs:
    """Read the inputs; raise TrtspecError if the artifact is missing or one of `others` is not a document."""
    manifest = load_manifest(root)
    report, verified = load_verification(root)
    return ReadinessInputs(
        root=root,
        manifest=manifest,
        manifest_sha256=manifest_sha256(root),
        published=modified(root / MANIFEST),
        report=report,
        verified=verified,
        has_copy=report is None and read_untrusted_report(root) is not None,
        documents=[*_saved_results(root, target_sha256(manifest)), *(read_document(path) for path in others)],
        deployed=list(_deployed(manifest.recipe.name, manifest_sha256(root))),
        prometheus=prometheus,
    )


def modified(path: Path) -> datetime:
    """Return the modification time of a file in UTC."""
    return datetime.fromtimestamp(path.stat().st_mtime, timezone.utc)


def _saved_results(root: Path, target: str) -> Iterator[SavedDocument]:
    for path in list_documents(root, target):
        with suppress(TrtspecError):  # ignore damaged files
            yield read_document(path)


def _deployed(name: str, manifest: str) -> Iterator[DeploymentRecord]:
    """Yield the deployments of this artifact, and of others under its recipe's name."""
    for each in deployment_names():
        with suppress(TrtspecError):
            record = DeploymentJournal(each).known()
            if record.manifest == manifest or record.name == name:
                yield record
