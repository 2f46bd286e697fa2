# SPDX-License-Identifier: Apache-2.0
"""What is known of an artifact: its manifest and report, documents of it or handed in, deployments, a Prometheus."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from pathlib import Path

from trtspec.bench.artifact import artifact_prompts
from trtspec.bench.provenance import manifest_named, objection
from trtspec.bench.saved_documents import Saved, kept_documents, prompts_sha256, read_document
from trtspec.bench.target_fingerprint import target_sha256
from trtspec.bench.verification_report import Verification, kept_verification, read_copy
from trtspec.core.errors import TrtspecError
from trtspec.deployment.journal import DeploymentJournal, Record, deployment_names
from trtspec.recipe.resolve import ResolvedRecipe
from trtspec.report.monitoring.prometheus import Prometheus
from trtspec.store.artifact_paths import MANIFEST
from trtspec.store.manifest import Manifest, load_manifest, manifest_sha256


@dataclass(frozen=True)
class Facts:
    """Everything that a row may look at.

    `published` is when the artifact was put into its place. `report` is what this user found on this machine, and
    `verified` is when; `has_copy` is whether the artifact brought a report, which proves nothing here.
    """

    root: Path
    manifest: Manifest
    manifest_sha256: str
    published: datetime
    report: Verification | None
    verified: datetime | None
    has_copy: bool
    documents: Sequence[Saved]
    deployed: Sequence[Record]
    prometheus: Prometheus | None

    @property
    def recipe(self) -> ResolvedRecipe:
        """Return the recipe as it was resolved."""
        return self.manifest.recipe

    @property
    def drafts(self) -> bool:
        """Return whether anything is drafted."""
        return self.recipe.speculation.method != "none"

    @cached_property
    def prompts(self) -> str:
        """Return the digest of the prompts that the artifact is measured on."""
        return prompts_sha256(prompt.text for prompt in artifact_prompts(self.root, None))

    def of_kind(self, kind: str) -> list[Saved]:
        """Return the documents of a kind, those first that nothing speaks against, the newest first among equals."""
        found = [each for each in self.documents if each.kind == kind]
        return sorted(found, key=lambda each: (not self.objection(each), each.time), reverse=True)

    def objection(self, document: Saved) -> str:
        """Return why a document does not count for this artifact, "" where it does."""
        if against := objection(document.values, self.manifest, self.manifest_sha256):
            return against
        is_named = document.text("target", "sha256") or manifest_named(document.values)
        return "" if is_named or document.time >= self.published else "older than the artifact"

    def remark(self, document: Saved) -> str:
        """Return what is to be said of a document that counts."""
        told = document.text("prompts", "sha256") or document.text("prompt_set", "sha256")
        return "by other prompts than the artifact's own" if told and told != self.prompts else ""


def gather(root: Path, others: Sequence[Path], prometheus: Prometheus | None) -> Facts:
    """Read what is known; raises TrtspecError where there is no artifact, or one of the others is no document."""
    manifest = load_manifest(root)
    report, verified = kept_verification(root)
    return Facts(
        root=root,
        manifest=manifest,
        manifest_sha256=manifest_sha256(root),
        published=modified(root / MANIFEST),
        report=report,
        verified=verified,
        has_copy=report is None and read_copy(root) is not None,
        documents=[*_kept(root, target_sha256(manifest)), *(read_document(path) for path in others)],
        deployed=list(_deployed(manifest.recipe.name, manifest_sha256(root))),
        prometheus=prometheus,
    )


def modified(path: Path) -> datetime:
    """Return when a file was written, in UTC."""
    return datetime.fromtimestamp(path.stat().st_mtime, timezone.utc)


def _kept(root: Path, target: str) -> Iterator[Saved]:
    for path in kept_documents(root, target):
        with suppress(TrtspecError):  # a file of ours that somebody damaged is as good as none
            yield read_document(path)


def _deployed(name: str, manifest: str) -> Iterator[Record]:
    """Yield what serves this artifact, or another one under its recipe's name."""
    for each in deployment_names():
        with suppress(TrtspecError):
            record = DeploymentJournal(each).known()
            if record.manifest == manifest or record.name == name:
                yield record
