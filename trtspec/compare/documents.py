# SPDX-License-Identifier: Apache-2.0
"""Saved documents that can be compared: what `plan`, `verify` and `bench` print with `--json`.

Owns their form as far as a comparison reads it, and that a stranger's file is bounded before it is parsed. Keys that it
does not know are left alone, so that documents of other versions can be read.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, Field, ValidationError

from trtspec.checkpoint.untrusted import open_regular, parse_object
from trtspec.errors import TrtspecError
from trtspec.files import Sha256

MAX_BYTES, MAX_VALUES = 4 << 20, 200_000
KNOWN = "documents of `trtspec plan`, `verify` and `bench` with --json can be compared"
SAMPLES = 3  # a list of so many numbers is samples, a shorter one an interval


class StepPart(BaseModel):
    """A step; `inputs` are the digests that its key is made of, by their names, empty where nobody recorded them."""

    name: str
    key: Sha256
    inputs: dict[str, str] = {}
    read_bytes: Annotated[int, Field(ge=0)] | None = None


class GpuPart(BaseModel):
    """What serving takes of one device."""

    id: str
    total_bytes: int


class MemoryPart(BaseModel):
    """What serving takes of all devices."""

    gpus: list[GpuPart]


class PlanDocument(BaseModel):
    """The document of `plan --json`; one of an earlier trtspec has no `recipe` and no inputs of its steps."""

    format_version: Literal[1]
    name: str
    recipe: dict[str, Any] | None = None
    keys_are_final: bool = True
    steps: list[StepPart]
    memory: MemoryPart


class CheckPart(BaseModel):
    """A check of `verify`."""

    name: str
    ok: bool
    value: Any = None
    limit: Any = None


class VerifyDocument(BaseModel):
    """The document of `verify --json`, which is also the report in an artifact."""

    COMMAND: ClassVar[str] = "verify"

    format_version: Literal[1]
    acceptance: str
    checks: list[CheckPart]


class BenchSide(BaseModel):
    """One side of `bench`; what else it says is kept as it is."""

    acceptance_rate: float
    mean_accepted_len: float


class BenchDocument(BaseModel):
    """The document of `bench --json`."""

    COMMAND: ClassVar[str] = "bench"

    format_version: Literal[1]
    acceptance: str
    baseline: BenchSide
    speculative: BenchSide
    speedup: float


Known = PlanDocument | VerifyDocument | BenchDocument
# The key that tells a document from the others.
KINDS: dict[str, type[Known]] = {"steps": PlanDocument, "checks": VerifyDocument, "speculative": BenchDocument}


def load_document(path: Path) -> tuple[Known, dict[str, Any]]:
    """Return a document and its bare values; raises TrtspecError for a file that is none of the known ones."""
    with open_regular(path) as file:
        raw = file.read(MAX_BYTES + 1)
    if len(raw) > MAX_BYTES:
        raise TrtspecError(f"larger than the {MAX_BYTES >> 20} MiB that are read", where=str(path), hint=KNOWN)
    try:
        values = parse_object(raw, MAX_VALUES)
    except ValueError as error:
        raise TrtspecError(str(error), where=str(path), hint=KNOWN) from None
    return _checked(values, path), values


def _checked(values: dict[str, Any], path: Path) -> Known:
    if "recipes" in values:
        raise TrtspecError("it holds the plans of several recipes", where=str(path), hint="save one of them")
    kind = next((kind for key, kind in KINDS.items() if key in values), None)
    if kind is None:
        raise TrtspecError("not a document that can be compared", where=str(path), hint=KNOWN)
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        message = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
        raise TrtspecError(message, where=str(path), hint=KNOWN) from None


def metrics_of(document: VerifyDocument | BenchDocument, values: dict[str, Any]) -> dict[str, Any]:
    """Return what a report says in numbers and verdicts, without samples and words."""
    if isinstance(document, VerifyDocument):
        checks = {check.name: check.model_dump(exclude={"name"}) for check in document.checks}
        return {"acceptance": document.acceptance, **checks}
    return {key: value for key, value in _without_samples(values).items() if key != "format_version"}


def headlines(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return the metrics that reports of both kinds may have, under one name each."""
    places = {
        "acceptance": ("acceptance",),
        "acceptance_rate": ("min_acceptance.value", "speculative.acceptance_rate"),
        "speedup": ("min_speedup.value", "speedup"),
    }
    found = {name: [_at(metrics, place) for place in each] for name, each in places.items()}
    return {name: value for name, values in found.items() for value in values if value is not None}


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
