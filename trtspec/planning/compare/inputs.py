# SPDX-License-Identifier: Apache-2.0
"""Read an input of a comparison into sections of a common form.

Distinguishes recipes, plans, artifacts and reports. Reads documents and headers only; the caller provides the function
that plans a recipe.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trtspec.checkpoints.safe_json import MAX_DEPTH, inside, is_shallow
from trtspec.core.errors import TrtspecError
from trtspec.core.files import describe_read_error, open_regular
from trtspec.planning.compare.documents import SUPPORTED, PlanInput, StepPart, extract_metrics, load_document
from trtspec.recipe.files import find_recipe
from trtspec.store.artifact_paths import MANIFEST, REPORTS
from trtspec.store.manifest import load_manifest

RECIPE, PLAN, ARTIFACT, REPORT = "recipe", "plan", "artifact", "report"
MOST_REPORTS = 16

PlanOf = Callable[[Path], dict[str, Any]]  # from a recipe file to the document of `plan --json`


@dataclass(frozen=True)
class ComparisonInput:
    """One input of a comparison.

    `sections` are nested mappings of plain values: recipe, steps (keys by name), memory (bytes by GPU), tools, gpu,
    files (size and sha256 by path), verify, bench. `steps` have the parts of the steps' keys if known. `remarks`
    describe what was skipped.
    """

    kind: str
    path: str
    name: str
    sections: Mapping[str, Mapping[str, Any]]
    steps: Mapping[str, StepPart] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


def read_side(path: Path, plan_of: PlanOf) -> ComparisonInput:
    """Read the file or directory at `path`, or the shipped recipe of that name; TrtspecError if it is unsupported."""
    if path.is_dir():
        return _artifact(path)
    found = find_recipe(path)
    if not found.exists():
        hint = f"name a recipe, an artifact's directory or a saved document: {SUPPORTED}"
        raise TrtspecError("no such file or directory", where=str(path), hint=hint)
    return _document(path) if _is_document(found) else _planned(RECIPE, path, PlanInput.model_validate(plan_of(path)))


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
    if isinstance(document, PlanInput):
        return _planned(PLAN, path, document)
    return ComparisonInput(REPORT, str(path), path.stem, {document.COMMAND: extract_metrics(document, values)})


def _planned(kind: str, path: Path, plan: PlanInput) -> ComparisonInput:
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
        "files": {file.path: {"size": file.size, "sha256": file.sha256} for file in manifest.files},
        **reports,
    }
    if not is_shallow(sections):
        raise TrtspecError(f"nested more than {MAX_DEPTH} deep", where=str(root / MANIFEST), hint="build it again")
    steps = {step.name: StepPart(name=step.name, key=step.key) for step in manifest.steps}
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
        if not isinstance(document, PlanInput):
            found.setdefault(document.COMMAND, extract_metrics(document, values))
    return found, remarks


def _filled(sections: Mapping[str, Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    return {name: section for name, section in sections.items() if section}
