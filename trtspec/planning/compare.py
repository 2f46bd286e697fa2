# SPDX-License-Identifier: Apache-2.0
"""Comparison of two recipes, plans, artifacts or reports: their differing values, and the effects of the differences.

Inputs are recipes, artifacts, and the `--json` output of `plan`, `verify` and `bench`. Only documents are read, under
size limits; other files of an artifact are compared by their recorded digests. The caller provides the function that
plans a recipe.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

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
SAMPLES = 3  # lists of at least this length are samples; shorter lists are intervals

KnownDocument = PlanDocument | VerificationDocument
# Key that identifies each kind of document, in this order, because documents of `bench` may have checks too.
KINDS: dict[str, type[KnownDocument]] = {
    "steps": PlanDocument,
    "speculative": BenchDocument,
    "checks": VerificationDocument,
}
# Keys of a report that are not metrics. Checks are added under their names.
NO_METRICS = ("format_version", "checks", "left_out", "manifest")


def load_document(path: Path) -> tuple[KnownDocument, dict[str, Any]]:
    """Read a saved document; return it parsed and as plain values, or raise TrtspecError if it is unsupported."""
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
    """Return the numbers and check results of a report, without lists of samples."""
    checks = {check.name: check.model_dump(exclude={"name"}) for check in document.checks}
    left_out = {"left_out": {each.name: each.reason for each in document.left_out}} if document.left_out else {}
    metrics = {key: value for key, value in _without_samples(values).items() if key not in NO_METRICS}
    return {**metrics, **checks, **left_out}


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


MOST_REPORTS = 16


@dataclass(frozen=True)
class ComparisonInput:
    """One of the two inputs of a comparison.

    `sections` maps a section name to nested values: recipe, steps (keys by name), memory (bytes by GPU), tools, gpu,
    files (size and digest by path), verify, bench. `steps` maps step names to steps, with the parts of their keys if
    known. `remarks` describe skipped reports and uncertain keys.
    """

    kind: str
    path: str
    name: str
    sections: Mapping[str, Mapping[str, Any]]
    steps: Mapping[str, PlanStep] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()


def read_side(path: Path, plan_of: Callable[[Path], dict[str, Any]]) -> ComparisonInput:
    """Read one input: a directory, a file, or the shipped recipe of that name.

    `plan_of` returns the document of `plan --json` for a recipe file. Raises TrtspecError for an unsupported input.
    """
    if path.is_dir():
        return _artifact(path)
    found = find_recipe(path)
    if not found.exists():
        hint = f"name a recipe, an artifact's directory or a saved document: {SUPPORTED}"
        raise TrtspecError("no such file or directory", where=str(path), hint=hint)
    if not _is_document(found):
        return _planned("recipe", path, PlanDocument.model_validate(plan_of(path)))
    document, values = load_document(path)
    if isinstance(document, PlanDocument):
        return _planned("plan", path, document)
    return ComparisonInput("report", str(path), path.stem, {document.COMMAND: extract_metrics(document, values)})


def _is_document(path: Path) -> bool:
    """Return True for a saved document and False for a recipe; both may start with a brace."""
    try:
        file = open_regular(path)
    except OSError as error:
        raise TrtspecError(describe_read_error(error), where=str(path)) from None
    with file:
        return path.suffix not in (".yaml", ".yml") and file.read(1 << 10).lstrip()[:1] == b"{"


def _planned(kind: str, path: Path, plan: PlanDocument) -> ComparisonInput:
    sections: dict[str, Mapping[str, Any]] = {
        "recipe": plan.recipe or {},
        "steps": {step.name: step.key for step in plan.steps},
        "memory": {gpu.id: gpu.total_bytes for gpu in plan.memory.gpus},
    }
    steps = {step.name: step for step in plan.steps}
    remark = "a source or an image's tag was never read, so step keys are not final; trtspec build reads it"
    remarks = () if plan.keys_are_final else (remark,)
    return ComparisonInput(kind, str(path), plan.name, _filled(sections), steps, remarks)


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
    return ComparisonInput("artifact", str(root), manifest.recipe.name, _filled(sections), steps, tuple(remarks))


def _reports(root: Path) -> tuple[dict[str, Mapping[str, Any]], list[str]]:
    """Return the metrics of an artifact's reports by section, and remarks on reports that cannot be read."""
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


def describe_effects(a: ComparisonInput, b: ComparisonInput) -> dict[str, Any]:
    """Return the effects of changing from `a` to `b` on `steps`, `build`, `memory`, `files` and `speedup`.

    An effect is None if an input lacks the section for it.
    """
    return {
        "steps": _steps(a, b),
        "build": _build(a, b),
        "memory": _memory(a, b),
        "files": _files(a, b),
        "speedup": _speedup(a, b),
    }


def _steps(a: ComparisonInput, b: ComparisonInput) -> list[dict[str, str]] | None:
    """Return the steps that differ, each with the differing parts of its key."""
    if not (a.steps and b.steps):
        return None
    return [
        {"name": name, **_change(a.steps.get(name), b.steps.get(name))}
        for name in {**a.steps, **b.steps}
        if not (name in a.steps and name in b.steps and a.steps[name].key == b.steps[name].key)
    ]


def _change(a: PlanStep | None, b: PlanStep | None) -> dict[str, str]:
    if a is None or b is None:
        return {"what": "only in b" if a is None else "only in a", "why": ""}
    names = [name for name in {**a.key_parts, **b.key_parts} if a.key_parts.get(name) != b.key_parts.get(name)]
    return {"what": "differs", "why": ", ".join(names) if a.key_parts and b.key_parts else "not recorded"}


def _build(a: ComparisonInput, b: ComparisonInput) -> dict[str, Any] | None:
    """Return the steps of `b` that must still run after `a` was built, and the bytes that they read and write."""
    if not (a.steps and b.steps):
        return None
    there = {step.key for step in a.steps.values()}
    new = [step for step in b.steps.values() if step.key not in there]
    steps = {"a": list(a.steps.values()), "b": list(b.steps.values()), "left": new}
    reads = {f"{name}_read_bytes": _total(step.read_bytes for step in each) for name, each in steps.items()}
    writes = {f"{name}_write_bytes": _total(step.write_bytes for step in each) for name, each in steps.items()}
    return {"steps": [step.name for step in new], **reads, **writes}


def _total(sizes: Iterable[int | None]) -> int | None:
    found = list(sizes)
    known = [size for size in found if size is not None]
    return sum(known) if len(known) == len(found) else None


def _memory(a: ComparisonInput, b: ComparisonInput) -> list[dict[str, Any]] | None:
    ours, theirs = a.sections.get("memory"), b.sections.get("memory")
    if ours is None or theirs is None:
        return None
    return [{"gpu": gpu, "a_bytes": ours.get(gpu), "b_bytes": theirs.get(gpu)} for gpu in {**ours, **theirs}]


def _files(a: ComparisonInput, b: ComparisonInput) -> dict[str, int] | None:
    ours, theirs = a.sections.get("files"), b.sections.get("files")
    if ours is None or theirs is None:
        return None
    both = ours.keys() & theirs.keys()
    return {
        "same": sum(ours[path] == theirs[path] for path in both),
        "different": sum(ours[path] != theirs[path] for path in both),
        "only_a": len(ours) - len(both),
        "only_b": len(theirs) - len(both),
        "a_bytes": sum(file["size"] for file in ours.values()),
        "b_bytes": sum(file["size"] for file in theirs.values()),
    }


def _speedup(a: ComparisonInput, b: ComparisonInput) -> dict[str, Any] | None:
    """Return both speed-up intervals, and `overlap` if the difference between them may be noise."""
    ours, theirs = _interval(a), _interval(b)
    if ours is None or theirs is None:
        return None
    return {"a": ours, "b": theirs, "overlap": ours[0] <= theirs[1] and theirs[0] <= ours[1]}


def _interval(side: ComparisonInput) -> list[float] | None:
    found = [section.get("speedup_interval") for section in side.sections.values()]
    intervals = [each for each in found if isinstance(each, list) and len(each) == 2]
    is_numbers = bool(intervals) and all(type(bound) in (int, float) for bound in intervals[0])
    return intervals[0] if is_numbers else None


FORMAT_VERSION = 1
DifferenceKind = Literal["differs", "only in a", "only in b", "same"]
# Hints on producing a section that an input lacks.
MADE_BY = {
    "memory": "trtspec plan reports it for a recipe",
    "tools": "trtspec build records them",
    "files": "trtspec build records them",
    "verify": "trtspec verify writes it into the artifact",
    "bench": "trtspec bench --json prints it",
}


@dataclass(frozen=True)
class ValueDifference:
    """A value in one or both inputs, equal or not; `path` is dotted within `section`, and an absent value is None."""

    section: str
    path: str
    a: Any
    b: Any
    what: DifferenceKind

    @property
    def percent(self) -> float | None:
        """Return the change from `a` to `b` in percent, or None for values that are not numbers or if `a` is 0."""
        if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in (self.a, self.b)):
            return None
        return round(100 * (self.b - self.a) / abs(self.a), 2) if self.a else None

    def as_dict(self) -> dict[str, Any]:
        """Return an entry of the document of `compare --json`."""
        return asdict(self) | ({} if self.percent is None else {"percent": self.percent})


@dataclass(frozen=True)
class InputComparison:
    """All values of the sections that both inputs have; `not_compared` maps each other section to the reason."""

    a: ComparisonInput
    b: ComparisonInput
    places: tuple[ValueDifference, ...]
    not_compared: dict[str, str]

    @property
    def differences(self) -> list[ValueDifference]:
        return [place for place in self.places if place.what != "same"]

    @property
    def same(self) -> dict[str, int]:
        return dict(Counter(place.section for place in self.places if place.what == "same"))

    def naming(self, a: Mapping[str, str], b: Mapping[str, str]) -> InputComparison:
        """Return a copy in which models are replaced by `a` and `b`, which map recipe paths to directories or hub ids.

        Unlike the recorded names, these distinguish different models with the same name.
        """

        def named(place: ValueDifference) -> ValueDifference:
            ours, theirs = a.get(place.path, place.a), b.get(place.path, place.b)
            if place.section != "recipe" or place.path not in {*a, *b} or "only" in place.what:
                return place
            return replace(place, a=ours, b=theirs, what="same" if ours == theirs else "differs")

        return replace(self, places=tuple(map(named, self.places)))

    def as_dict(self, *, everything: bool = False) -> dict[str, Any]:
        """Return the document of `compare --json`; with `everything`, it also lists the equal values."""
        unchanged = [place.as_dict() for place in self.places if place.what == "same"]
        return {
            "format_version": FORMAT_VERSION,
            "a": _described(self.a),
            "b": _described(self.b),
            "differences": [place.as_dict() for place in self.differences],
            "same": self.same,
            **({"unchanged": unchanged} if everything else {}),
            "not_compared": self.not_compared,
            "effects": describe_effects(self.a, self.b),
        }


def compare(a: ComparisonInput, b: ComparisonInput) -> InputComparison:
    """Compare two inputs section by section; raises TrtspecError if they do not share a section or metric."""
    sections = {name: (a.sections[name], b.sections[name]) for name in a.sections if name in b.sections}
    if not sections:  # reports of `verify` and `bench` have some metrics in common
        ours, theirs = headlines(a), headlines(b)
        common = [name for name in ours if name in theirs]
        both = {name: ours[name] for name in common}, {name: theirs[name] for name in common}
        sections = {"report": both} if common else {}
    if not sections:
        hint = "compare recipes, plans and artifacts with each other, or reports with each other"
        raise TrtspecError(f"a {a.kind} and a {b.kind} have nothing in common", where=f"{a.path}, {b.path}", hint=hint)
    places = [place for name, (ours, theirs) in sections.items() for place in _entries(name, "", ours, theirs)]
    return InputComparison(a, b, tuple(places), _not_compared(a, b))


def headlines(side: ComparisonInput) -> dict[str, Any]:
    """Return the metrics that reports of `verify` and `bench` have in common, under the same names for both."""
    places = {
        "acceptance_rate": ("speculative.acceptance_rate", "min_acceptance.value"),
        "speedup": ("speedup", "min_speedup.value"),
    }
    sections = list(side.sections.values())[::-1]  # the last one takes precedence
    found = {name: [_at(each, place) for each in sections for place in paths] for name, paths in places.items()}
    known = {name: [value for value in values if value is not None] for name, values in found.items()}
    return {name: values[0] for name, values in known.items() if values}


def _not_compared(a: ComparisonInput, b: ComparisonInput) -> dict[str, str]:
    found = {}
    for name in {**a.sections, **b.sections}:
        for letter, side in (("a", a), ("b", b)):
            if name not in side.sections:
                made_by = f"; {MADE_BY[name]}" if name in MADE_BY else ""
                article = "an" if side.kind[0] in "aeiou" else "a"
                found[name] = f"not in {letter}, {article} {side.kind}{made_by}"
    return found


def _entries(section: str, path: str, a: Any, b: Any) -> Iterator[ValueDifference]:
    is_record = section == "files" and path  # size and digest are compared together
    if not (isinstance(a, Mapping) and isinstance(b, Mapping)) or is_record:
        is_equal = a == b and isinstance(a, bool) == isinstance(b, bool)
        yield ValueDifference(section, path, a, b, "same" if is_equal else "differs")
        return
    for key in {**a, **b}:
        below = f"{path}.{key}" if path else str(key)
        if key in a and key in b:
            yield from _entries(section, below, a[key], b[key])
        elif key in a:
            yield ValueDifference(section, below, a[key], None, "only in a")
        else:
            yield ValueDifference(section, below, None, b[key], "only in b")


def _described(side: ComparisonInput) -> dict[str, Any]:
    return {"kind": side.kind, "path": side.path, "name": side.name, "remarks": list(side.remarks)}
