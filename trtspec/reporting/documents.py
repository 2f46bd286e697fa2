# SPDX-License-Identifier: Apache-2.0
"""The documents that a report is made of: an artifact's own, and saved ones of `build`, `profile`, `bench`, `train`.

Owns their form as far as a report reads it, and that a stranger's file is bounded before it is parsed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field, ValidationError

from trtspec.artifacts.manifest import Manifest, load_manifest
from trtspec.checkpoint.untrusted import parse_object, shown
from trtspec.errors import TrtspecError
from trtspec.files import read_bounded, unreadable
from trtspec.measure.report import Verification, manifest_sha256, read_report

MAX_BYTES, MAX_VALUES = 8 << 20, 400_000
KNOWN = "documents of `trtspec build`, `profile`, `bench` and `train` with --json can be shown"

Text = Annotated[str, Field(max_length=2000)]
Share = Annotated[float, Field(ge=0, le=1)]
Positive = Annotated[float, Field(gt=0, lt=1e12)]
Count = Annotated[int, Field(ge=0, lt=10**12)]


class BuiltStep(BaseModel):
    """A step of a build, and how long it took."""

    name: Text
    status: Text
    seconds: Annotated[float, Field(ge=0, lt=1e9)]


class BuildDocument(BaseModel):
    """The document of `build --json`."""

    format_version: Literal[1]
    steps: Annotated[list[BuiltStep], Field(max_length=10_000)]
    seconds: float


class Means(BaseModel):
    """Mean accepted lengths as [mean, low, high]."""

    token_weighted: tuple[float, float, float]
    request_weighted: tuple[float, float, float]


class OfKind(BaseModel):
    """The acceptance of one kind of prompt."""

    kind: Text
    prompts: Count
    acceptance_rate: Share
    mean_accepted_len: Means


class AtBatch(BaseModel):
    """An expected speed-up."""

    batch: Annotated[int, Field(ge=1, le=100_000)]
    draft_len: Count
    speedup: Positive
    interval: tuple[float, float]


class Candidate(BaseModel):
    """A method that was profiled."""

    method: Text
    draft: Text | None
    draft_len: Count
    acceptance_rate: Share
    mean_accepted_len: Means
    by_position: Annotated[list[Share], Field(max_length=64)]
    by_kind: Annotated[list[OfKind], Field(max_length=1000)]
    verdict: Text
    best: Annotated[list[AtBatch], Field(max_length=64)]
    speedups: Annotated[list[AtBatch], Field(max_length=10_000)]

    @property
    def name(self) -> str:
        """Return what people call it."""
        return f"{self.method} ({self.draft})" if self.draft else self.method


class Recommended(BaseModel):
    """What a profile recommends."""

    method: Text
    draft_len: Count
    why: Text


class ProfileDocument(BaseModel):
    """The document of `profile --json`."""

    format_version: Literal[1]
    name: Text
    prompts: Count
    tokens: Count
    methods: Annotated[list[Candidate], Field(max_length=100)]
    recommendation: Recommended


class Arm(BaseModel):
    """One side of a benchmark."""

    tokens_per_s: Annotated[list[Positive], Field(max_length=10_000)]
    median_tokens_per_s: Positive
    acceptance_rate: Share
    mean_accepted_len: Positive


class BenchDocument(BaseModel):
    """The document of `bench --json`."""

    format_version: Literal[1]
    prompts: Count
    max_tokens: Count
    baseline: Arm
    speculative: Arm
    speedup: Positive
    speedup_interval: tuple[float, float]
    identical_texts: Count


class TrainedSide(BaseModel):
    """The acceptance of a draft on held-out prompts."""

    mean_accepted_len: Positive
    interval: tuple[float, float]
    acceptance_rate: Share


class TrainedKind(BaseModel):
    """That of one kind of prompt before and after training."""

    kind: Text
    prompts: Count
    before: TrainedSide
    after: TrainedSide
    verdict: Text


class TrainDocument(BaseModel):
    """The document of `train --json`."""

    format_version: Literal[1]
    published: bool
    refusals: Annotated[list[Text], Field(max_length=1000)]
    before: TrainedSide
    after: TrainedSide
    kinds: Annotated[list[TrainedKind], Field(max_length=1000)]


Known = BuildDocument | ProfileDocument | BenchDocument | TrainDocument
KINDS: dict[str, type[Known]] = {
    "methods": ProfileDocument, "speculative": BenchDocument, "published": TrainDocument, "steps": BuildDocument
}  # fmt: skip


@dataclass(frozen=True)
class Source:
    """A file that a report was made of."""

    name: str
    sha256: str


@dataclass
class Facts:
    """Everything that a report may show."""

    root: Path
    manifest: Manifest
    manifest_sha256: str
    verification: Verification | None
    build: BuildDocument | None = None
    profile: ProfileDocument | None = None
    bench: BenchDocument | None = None
    training: TrainDocument | None = None
    sources: list[Source] = field(default_factory=list)

    @property
    def name(self) -> str:
        """Return the recipe's name."""
        return self.manifest.recipe.name

    @property
    def recipe(self) -> dict[str, Any]:
        """Return the recipe as it was resolved."""
        return self.manifest.recipe.as_dict()


def gather(root: Path, others: Sequence[Path]) -> Facts:
    """Read an artifact's manifest and report, and further documents; raises TrtspecError for what is none."""
    facts = Facts(root, load_manifest(root), manifest_sha256(root), read_report(root))
    for path in others:
        document, digest = _read(path)
        facts.sources.append(Source(path.name, digest))
        if isinstance(document, ProfileDocument):
            facts.profile = document
        elif isinstance(document, BenchDocument):
            facts.bench = document
        elif isinstance(document, TrainDocument):
            facts.training = document
        else:
            facts.build = document
    return facts


def _read(path: Path) -> tuple[Known, str]:
    try:
        data = read_bounded(path, MAX_BYTES)
        values = parse_object(data, MAX_VALUES)
    except OSError as error:
        raise TrtspecError(unreadable(error), where=str(path), hint=KNOWN) from None
    except ValueError as error:
        raise TrtspecError(str(error), where=str(path), hint=KNOWN) from None
    kind = next((kind for key, kind in KINDS.items() if key in values), None)
    if kind is None:
        raise TrtspecError("not a document that a report shows", where=str(path), hint=KNOWN)
    try:
        return kind.model_validate(values), hashlib.sha256(data).hexdigest()
    except ValidationError as error:
        first = error.errors()[0]
        where = shown(".".join(map(str, first["loc"])))
        raise TrtspecError(f"{where}: {first['msg']}", where=str(path), hint=KNOWN) from None
