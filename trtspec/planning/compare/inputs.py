# SPDX-License-Identifier: Apache-2.0
"""Read an input of a comparison into sections of a common form.

Inputs are recipes, artifacts, and the `--json` output of `plan`, `verify` and `bench`. Only documents and headers are
read, under size limits; the caller provides the function that plans a recipe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trtspec.checkpoints.safe_json import MAX_DEPTH, inside, is_shallow
from trtspec.core.errors import TrtspecError
from trtspec.core.files import describe_read_error, open_regular
from trtspec.planning.documents import (
    BenchDocument,
    PlanDocument,
    PlanStep,
    VerificationDocument,
    read_values,
    validated,
)
from trtspec.recipe.load import find_recipe
from trtspec.store.artifact import load_manifest
from trtspec.store.artifact_paths import MANIFEST, REPORTS

SUPPORTED = "documents of `trtspec plan`, `verify` and `bench` with --json can be compared"
SAMPLES = 3  # lists of at least this many numbers are samples, shorter ones intervals


KnownDocument = PlanDocument | VerificationDocument
# The key that identifies each kind; documents of `bench` may have checks too.
KINDS: dict[str, type[KnownDocument]] = {
    "steps": PlanDocument,
    "speculative": BenchDocument,
    "checks": VerificationDocument,
}
# Keys of a report that are not metrics; the checks are added by name.
NO_METRICS = ("format_version", "checks", "left_out", "manifest")


def load_document(path: Path) -> tuple[KnownDocument, dict[str, Any]]:
    """Return a document and its plain values; TrtspecError if the file is not a supported document."""
    values, _ = read_values(path, SUPPORTED)
    if "recipes" in values and "steps" not in values:
        raise TrtspecError("the file has the plans of several recipes", where=str(path), hint="save one of them")
    if values.get("kind") == "load":
        raise TrtspecError("a benchmark under load", where=str(path), hint="trtspec bench --compare A.json B.json")
    kind = next((kind for key, kind in KINDS.items() if key in values), None)
    if kind is None:
        raise TrtspecError("not a document that can be compared", where=str(path), hint=SUPPORTED)
    return validated(kind, values, path, SUPPORTED), values


def extract_metrics(document: VerificationDocument, values: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers and verdicts of a report, without samples."""
    checks = {check.name: check.model_dump(exclude={"name"}) for check in document.checks}
    left_out = {"left_out": {each.name: each.reason for each in document.left_out}} if document.left_out else {}
    metrics = {key: value for key, value in _without_samples(values).items() if key not in NO_METRICS}
    return {**metrics, **checks, **left_out}


def headlines(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics that both kinds of reports may have, under common names."""
    places = {
        "acceptance_rate": ("speculative.acceptance_rate", "min_acceptance.value"),
        "speedup": ("speedup", "min_speedup.value"),
    }
    found = {name: [_at(metrics, place) for place in each] for name, each in places.items()}
    known = {name: [value for value in values if value is not None] for name, values in found.items()}
    return {name: values[0] for name, values in known.items() if values}


def _at(values: Any, dotted: str) -> Any:
    for key in dotted.split("."):
        values = values.get(key) if isinstance(values, dict) else None
    return values


def _without_samples(values: dict[str, Any]) -> dict[str, Any]:
    return {
        key: _without_samples(value) if isinstance(value, dict) else value
        for key, value in values.items()
        if not (isinstance(value, list) and len(value) >= SAMPLES)
    }


RECIPE, PLAN, ARTIFACT, REPORT = "recipe", "plan", "artifact", "report"
MOST_REPORTS = 16

PlanOf = Callable[[Path], dict[str, Any]]  # from a recipe file to the document of `plan --json`


@dataclass(frozen=True)
class ComparisonInput:
    """One input of a comparison.

    `sections` are nested mappings of plain values: recipe, steps (keys by name), memory (bytes by GPU), tools, gpu,
    files (size and digest by path), verify, bench. `steps` have the parts of the steps' keys if known. `remarks`
    describe what was skipped.
    """

    kind: str
    path: str
    name: str
    sections: Mapping[str, Mapping[str, Any]]
    steps: Mapping[str, PlanStep] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


def read_side(path: Path, plan_of: PlanOf) -> ComparisonInput:
    """Read the file or directory at `path`, or the shipped recipe of that name; TrtspecError if it is unsupported."""
    if path.is_dir():
        return _artifact(path)
    found = find_recipe(path)
    if not found.exists():
        hint = f"name a recipe, an artifact's directory or a saved document: {SUPPORTED}"
        raise TrtspecError("no such file or directory", where=str(path), hint=hint)
    return (
        _document(path) if _is_document(found) else _planned(RECIPE, path, PlanDocument.model_validate(plan_of(path)))
    )


def _is_document(path: Path) -> bool:
    """Distinguish a saved document from a recipe, which may start with a brace too."""
    try:
        file = open_regular(path)
    except OSError as error:
        raise TrtspecError(describe_read_error(error), where=str(path)) from None
    with file:
        return path.suffix not in (".yaml", ".yml") and file.read(1 << 10).lstrip()[:1] == b"{"


def _document(path: Path) -> ComparisonInput:
    document, values = load_document(path)
    if isinstance(document, PlanDocument):
        return _planned(PLAN, path, document)
    return ComparisonInput(REPORT, str(path), path.stem, {document.COMMAND: extract_metrics(document, values)})


def _planned(kind: str, path: Path, plan: PlanDocument) -> ComparisonInput:
    sections: dict[str, Mapping[str, Any]] = {
        "recipe": plan.recipe or {},
        "steps": {step.name: step.key for step in plan.steps},
        "memory": {gpu.id: gpu.total_bytes for gpu in plan.memory.gpus},
    }
    remark = "a source was never read, so step keys are not final; trtspec build reads it"
    steps = {step.name: step for step in plan.steps}
    return ComparisonInput(
        kind, str(path), plan.name, _filled(sections), steps, () if plan.keys_are_final else (remark,)
    )


def _artifact(root: Path) -> ComparisonInput:
    manifest = load_manifest(root)
    reports, remarks = _reports(root)
    sections: dict[str, Mapping[str, Any]] = {
        "recipe": manifest.recipe.as_dict(),
        "steps": {step.name: step.key for step in manifest.steps},
        "tools": manifest.tools,
        "gpu": manifest.gpu,
        "files": {file.path: {"size": file.size, "digest": file.digest} for file in manifest.files},
        **reports,
    }
    if not is_shallow(sections):
        raise TrtspecError(f"nested more than {MAX_DEPTH} deep", where=str(root / MANIFEST), hint="build it again")
    steps = {step.name: PlanStep(name=step.name, key=step.key) for step in manifest.steps}
    return ComparisonInput(ARTIFACT, str(root), manifest.recipe.name, _filled(sections), steps, tuple(remarks))


def _reports(root: Path) -> tuple[dict[str, Mapping[str, Any]], list[str]]:
    """Return the metrics of an artifact's reports by section, and remarks on skipped reports; errors are not raised."""
    found: dict[str, Mapping[str, Any]] = {}
    remarks: list[str] = []
    if (root / REPORTS).is_symlink():
        return found, [f"{REPORTS} is skipped: a symbolic link"]
    for path in sorted((root / REPORTS).glob("*.json"))[:MOST_REPORTS]:
        try:
            document, values = load_document(inside(root / REPORTS, path.name))
        except TrtspecError as error:
            remarks.append(f"{REPORTS}/{path.name} is skipped: {error.message}")
            continue
        if not isinstance(document, PlanDocument):
            found.setdefault(document.COMMAND, extract_metrics(document, values))
    return found, remarks


def _filled(sections: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    return {name: section for name, section in sections.items() if section}
