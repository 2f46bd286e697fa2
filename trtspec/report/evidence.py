# SPDX-License-Identifier: Apache-2.0
"""Evidence of a report: the manifest, the verification and saved documents, and the resulting decision."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from pydantic import BaseModel

from trtspec.bench.decision import (
    DraftOption,
    RelativeSpeed,
    SpeculationDecision,
    contradicting_measurement,
    decide,
    evidence,
    load_facts,
    manifest_facts,
    verification_facts,
)
from trtspec.bench.documents import (
    check_measured,
    list_documents,
    mismatch_reason,
    read_untrusted_report,
    read_verification,
    target_sha256,
)
from trtspec.bench.gates import (
    FAILS,
    HOLDS,
    MAX_RUNS,
    UNDECIDED,
    VerificationCheck,
    VerificationReport,
    undecided_policy,
)
from trtspec.core.errors import TrtspecError
from trtspec.planning.documents import (
    BaselineDocument,
    BenchDocument,
    BuildDocument,
    Document,
    LoadDocument,
    PlanDocument,
    ProfiledCandidate,
    ProfileDocument,
    TrainDocument,
    read_values,
    validated,
)
from trtspec.store.artifact import Manifest, load_manifest, manifest_sha256

ELSEWHERE = "measured elsewhere, not verified here"
KNOWN = "supported: --json output of trtspec build, plan, baseline, profile, bench and train"

# A document's kind is determined by the first of these keys that it contains. A plan also contains "steps".
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
    """A document that a report is based on."""

    name: str
    sha256: str
    against: str  # reason why it does not match the artifact, or ""
    what: str = ""  # field of ReportInputs for its content
    is_kept: bool = False  # saved automatically by an earlier command


@dataclass
class ReportInputs:
    """Inputs of a report: the artifact's manifest and verification, and at most one document of each kind."""

    root: Path
    manifest: Manifest
    manifest_sha256: str
    verification: VerificationReport | None
    elsewhere: bool = False  # the verification is the untrusted report in the artifact
    build: BuildDocument | None = None
    profile: ProfileDocument | None = None
    baseline: BaselineDocument | None = None
    bench: BenchDocument | None = None
    plan: PlanDocument | None = None
    load: LoadDocument | None = None
    training: TrainDocument | None = None
    sources: list[InputFile] = field(default_factory=list)

    def counted(self, schema: type[Document]) -> Document | None:
        """Return a document if it matches the artifact; other documents are shown, but do not affect the decision."""
        what = next(what for what, each in DOCUMENT_KINDS.values() if each is schema)
        found: Document | None = getattr(self, what)
        return None if any(each.what == what and each.against for each in self.sources) else found

    @property
    def name(self) -> str:
        return self.manifest.recipe.name

    @property
    def recipe(self) -> dict[str, Any]:
        """Return the resolved recipe as a dictionary."""
        return self.manifest.recipe.as_dict()


def gather(root: Path, others: Sequence[Path]) -> ReportInputs:
    """Read the inputs of a report; raises TrtspecError if one of the documents in `others` is invalid.

    Kinds that are missing in `others` are filled from the results that earlier commands saved for the artifact or its
    target.
    """
    own = read_verification(root)
    found = own or read_untrusted_report(root)
    judged = found.under(undecided_policy()) if found else None
    manifest, sha256 = load_manifest(root), manifest_sha256(root)
    facts = ReportInputs(root, manifest, sha256, judged, own is None and found is not None)
    for path in others:
        what, values, document, digest = _read(path)
        facts.sources.append(InputFile(path.name, digest, mismatch_reason(values, manifest, sha256), what))
        setattr(facts, what, document)
    for path in list_documents(root, target_sha256(facts.manifest)):
        with suppress(TrtspecError):  # ignore unsupported and damaged documents
            what, values, document, digest = _read(path)
            if getattr(facts, what) is None and not mismatch_reason(values, manifest, sha256):
                facts.sources.append(InputFile(path.name, digest, "", what, is_kept=True))
                setattr(facts, what, document)
    return facts


def _read(path: Path) -> tuple[str, dict[str, Any], BaseModel, str]:
    """Return the kind of a document, its plain values, the validated model and its SHA-256."""
    values, data = read_values(path, KNOWN)
    check_measured(values, path)
    key = next((key for key in DOCUMENT_KINDS if key in values), None)
    if key is None:
        raise TrtspecError("unsupported document", where=str(path), hint=KNOWN)
    what, schema = DOCUMENT_KINDS[key]
    return what, values, validated(schema, values, path, KNOWN), hashlib.sha256(data).hexdigest()


def report_decision(facts: ReportInputs) -> SpeculationDecision:
    """Return the decision that a report begins with, from all results that match the artifact."""
    found = evidence(
        manifest_facts(facts.manifest, facts.root),
        verification_facts(None if facts.elsewhere else facts.verification),
        _profile_evidence(facts),
        _load_evidence(facts),
        _bench_evidence(facts),
        {"rivals": _rivals(facts), "foreign": mismatched_documents(facts)},
    )
    return decide(found)


def verification_summary(facts: ReportInputs) -> str:
    """Return one line with the names of the failed, undecided and passed checks."""
    found = facts.verification
    if found is None:
        return "not verified"
    if facts.elsewhere:
        return ELSEWHERE
    words = {FAILS: "does not hold", UNDECIDED: "undecided", HOLDS: "verified"}
    names = {state: [check.name for check in found.checks if check.state == state] for state in words}
    return "; ".join(f"{words[state]}: {', '.join(those)}" for state, those in names.items() if those)


def contradiction(facts: ReportInputs, check: VerificationCheck) -> str:
    """Return a description of the benchmark result that contradicts a check, or ""."""
    bench = facts.counted(BenchDocument)
    if bench is None:
        return ""
    speedup, texts = RelativeSpeed(bench.speedup, *bench.speedup_interval), (bench.identical_texts, bench.prompts)
    return contradicting_measurement(check, speedup, bench.speculative.acceptance_rate, texts)


def mismatched_documents(facts: ReportInputs) -> list[str]:
    """Return a description with a reason for each document that does not match the artifact."""
    return [f"{each.name} is {each.against}" for each in facts.sources if each.against]


def matching_candidate(facts: ReportInputs) -> ProfiledCandidate | None:
    """Return the profiled candidate that corresponds to the artifact, or None if it is missing or ambiguous."""
    if not (profile := facts.counted(ProfileDocument)):
        return None
    recipe = facts.manifest.recipe
    of_method = [each for each in profile.methods if each.method == recipe.speculation.method and each.best]
    if len(of_method) > 1 and "draft" in recipe.models:
        draft = PurePath(recipe.models["draft"].model).name
        of_method = [each for each in of_method if each.draft and PurePath(each.draft).name == draft]
    return of_method[0] if len(of_method) == 1 else None


def _profile_evidence(facts: ReportInputs) -> dict[str, Any]:
    own = matching_candidate(facts)
    if own is None:
        return {}
    by_load = [(float(each.batch), each.speedup) for each in own.best]
    first = own.best[0]
    load = "1 request" if first.batch == 1 else f"{first.batch} requests at once"
    more = "more prompts (profile --num-prompts N)"
    speedup = RelativeSpeed(first.speedup, *first.interval)
    return {"speedup": speedup, "is_expected": True, "load": load, "by_load": by_load, "more": more}


def _load_evidence(facts: ReportInputs) -> dict[str, Any]:
    found = facts.counted(LoadDocument)
    points = [each.model_dump() for each in found.points] if found else []
    return load_facts(points) | {"is_expected": False} if any(each["speedup"] for each in points) else {}


def _bench_evidence(facts: ReportInputs) -> dict[str, Any]:
    if not (found := facts.counted(BenchDocument)):
        return {}
    return {
        "speedup": RelativeSpeed(found.speedup, *found.speedup_interval),
        "load": "1 request",
        "is_expected": False,
        "by_load": _load_evidence(facts).get("by_load", ()),
        "texts": (found.identical_texts, found.prompts),
        "acceptance": found.speculative.acceptance_rate or None,
        "more": f"--runs {MAX_RUNS}",
    }


def _rivals(facts: ReportInputs) -> Sequence[DraftOption]:
    """Return the profiled candidates that are significantly faster than the artifact's own candidate."""
    own, profile = matching_candidate(facts), facts.counted(ProfileDocument)
    others = [each for each in profile.methods if each is not own and each.best] if profile else []
    return [
        DraftOption(each.name, RelativeSpeed(each.best[0].speedup, *each.best[0].interval))
        for each in others
        if own is None or each.best[0].interval[0] > own.best[0].interval[1]
    ]
