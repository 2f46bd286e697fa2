# SPDX-License-Identifier: Apache-2.0
"""Inputs of a report: the artifact's manifest and verification, and saved documents of other commands."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, overload

from pydantic import BaseModel

from trtspec.bench.documents import list_documents, mismatch_reason, target_sha256
from trtspec.bench.gates import VerificationReport, undecided_policy
from trtspec.bench.verification_report import read_untrusted_report, read_verification
from trtspec.core.errors import TrtspecError
from trtspec.planning.documents import (
    BaselineDocument,
    BenchDocument,
    BuildDocument,
    LoadDocument,
    PlanDocument,
    ProfileDocument,
    TrainDocument,
    read_values,
    validated,
)
from trtspec.store.artifact import Manifest, load_manifest, manifest_sha256

ELSEWHERE = "measured elsewhere, not verified here"
KNOWN = "supported: --json output of trtspec build, plan, baseline, profile, bench and train"

# Kind of a document by the first of these keys that it has; the order matters, since a plan also has steps.
DOCUMENT_KINDS: dict[str, tuple[str, type[BaseModel]]] = {
    "methods": ("profile", ProfileDocument),
    "speculative": ("bench", BenchDocument),
    "points": ("load", LoadDocument),
    "median_tokens_per_s": ("baseline", BaselineDocument),
    "published": ("training", TrainDocument),
    "predicted": ("plan", PlanDocument),
    "steps": ("build", BuildDocument),
}


@dataclass(frozen=True)
class InputFile:
    """An input file of a report; `against` is the reason why it does not match the artifact, or "".

    `what` is the field of Facts that it fills. `is_kept` marks a document that a command saved automatically.
    """

    name: str
    sha256: str
    against: str
    what: str = ""
    is_kept: bool = False


@dataclass
class ReportInputs:
    """Inputs of a report.

    `elsewhere` is true if the verification is from the report in the artifact, which is not trusted.
    """

    root: Path
    manifest: Manifest
    manifest_sha256: str
    verification: VerificationReport | None
    elsewhere: bool = False
    build: BuildDocument | None = None
    profile: ProfileDocument | None = None
    baseline: BaselineDocument | None = None
    bench: BenchDocument | None = None
    plan: PlanDocument | None = None
    load: LoadDocument | None = None
    training: TrainDocument | None = None
    sources: list[InputFile] = field(default_factory=list)

    @overload
    def counted(self, what: Literal["bench"]) -> BenchDocument | None: ...
    @overload
    def counted(self, what: Literal["load"]) -> LoadDocument | None: ...
    @overload
    def counted(self, what: Literal["profile"]) -> ProfileDocument | None: ...
    def counted(self, what: str) -> Any:
        """Return a document if it matches the artifact; others are shown, but do not affect the verdict."""
        is_foreign = any(each.what == what and each.against for each in self.sources)
        return None if is_foreign else getattr(self, what)

    def rejection_reason(self, values: Mapping[str, Any]) -> str:
        """Return the reason why a document does not match the artifact, or ""."""
        return mismatch_reason(values, self.manifest, self.manifest_sha256)

    @property
    def name(self) -> str:
        """Return the name of the recipe."""
        return self.manifest.recipe.name

    @property
    def recipe(self) -> dict[str, Any]:
        """Return the resolved recipe as a dictionary."""
        return self.manifest.recipe.as_dict()


def gather(root: Path, others: Sequence[Path]) -> ReportInputs:
    """Read the manifest, the verification and the documents of `others`; TrtspecError for an invalid document.

    Results that commands saved for the artifact or its target fill the fields that `others` leave empty.
    """
    own = read_verification(root)
    found = own or read_untrusted_report(root)
    judged = found.under(undecided_policy()) if found else None
    facts = ReportInputs(root, load_manifest(root), manifest_sha256(root), judged, own is None and found is not None)
    for path in others:
        what, values, document, digest = _read(path)
        facts.sources.append(InputFile(path.name, digest, facts.rejection_reason(values), what))
        setattr(facts, what, document)
    for path in list_documents(root, target_sha256(facts.manifest)):
        with suppress(TrtspecError):  # ignore unsupported and damaged documents
            what, values, document, digest = _read(path)
            if getattr(facts, what) is None and not facts.rejection_reason(values):
                facts.sources.append(InputFile(path.name, digest, "", what, is_kept=True))
                setattr(facts, what, document)
    return facts


def _read(path: Path) -> tuple[str, dict[str, Any], BaseModel, str]:
    """Return the kind of a document, its values, the validated model and its SHA-256."""
    values, data = read_values(path, KNOWN)
    key = next((key for key in DOCUMENT_KINDS if key in values), None)
    if key is None:
        raise TrtspecError("unsupported document", where=str(path), hint=KNOWN)
    what, schema = DOCUMENT_KINDS[key]
    return what, values, validated(schema, values, path, KNOWN), hashlib.sha256(data).hexdigest()
