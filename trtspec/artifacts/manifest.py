# SPDX-License-Identifier: Apache-2.0
"""The artifact's manifest, `manifest.json`: the one document by which deploy and measure know what was built.

Owns its form, how it is read (as a stranger's file: size, schema and paths are checked) and the verification of the
files it names. Knows nothing of the store that the files came from.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError

from trtspec.artifacts.contents import unlisted
from trtspec.artifacts.paths import MANIFEST
from trtspec.diagnostics import plain_words, written
from trtspec.errors import TrtspecError
from trtspec.file_records import FileRecord, Sha256
from trtspec.files import in_threads, read_bounded, unreadable
from trtspec.hashing import file_sha256
from trtspec.recipe.resolve import ResolvedRecipe

SCHEMA = "trtspec.manifest/1"
MAX_BYTES = 16 << 20


def _not_itself(record: FileRecord) -> FileRecord:
    if record.path == MANIFEST:
        raise ValueError("the manifest cannot name itself")
    return record


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class StepRecord(_Record):
    """A step that went into the artifact."""

    name: str
    key: Sha256


class DeviceMemory(_Record):
    """What serving takes of one device ("cpu", or a GPU's number) as the plan says, in bytes."""

    id: str
    weights_bytes: int
    kv_cache_bytes: int
    draft_bytes: int
    activation_bytes: int

    @property
    def total_bytes(self) -> int:
        """Return all of it."""
        return self.weights_bytes + self.kv_cache_bytes + self.draft_bytes + self.activation_bytes


class BackendRecord(_Record):
    """The engine that was chosen, and why."""

    name: str
    why: str


class Manifest(_Record):
    """What was built, from what, with what, for what; equal manifests describe equal artifacts.

    It says neither when nor where: paths of the recipe are names alone. `memory` is empty where an earlier version
    built it. `target_key` is equal for artifacts whose converted target is the same but for a draft head in it; empty
    where nothing is converted.
    """

    recipe: ResolvedRecipe
    steps: tuple[StepRecord, ...]
    files: tuple[Annotated[FileRecord, AfterValidator(_not_itself)], ...]
    tools: dict[str, str]
    gpu: dict[str, Any]
    backend: BackendRecord
    memory: tuple[DeviceMemory, ...] = ()
    target_key: Sha256 | Literal[""] = ""

    def render(self) -> bytes:
        """Return the document as it is written, its schema first."""
        document = {"schema": SCHEMA, **self.model_dump(mode="json"), "recipe": self.recipe.as_dict()}
        return json.dumps(document, indent=1).encode() + b"\n"


def load_manifest(artifact_dir: Path) -> Manifest:
    """Return an artifact's manifest; TrtspecError where there is none, or none that this trtspec reads."""
    path = artifact_dir / MANIFEST
    document = _load_document(path)
    schema = document.pop("schema", None) if isinstance(document, dict) else None
    if schema != SCHEMA:
        hint = "read it with the trtspec that wrote it, or build it again" if is_ours(artifact_dir) else None
        raise TrtspecError(
            f"its schema is {written(schema)}; this trtspec reads {SCHEMA!r}", where=str(path), hint=hint
        )
    try:
        recipe = ResolvedRecipe.from_dict(document.pop("recipe", None))
        return Manifest.model_validate({**document, "recipe": recipe})
    except ValidationError as error:
        raise TrtspecError(_first_of(error), where=str(path), hint="build the artifact again") from error


def is_ours(artifact_dir: Path) -> bool:
    """Return whether a directory holds a manifest that a trtspec began to write, readable or not."""
    try:
        with (artifact_dir / MANIFEST).open("rb") as file:
            return b'"trtspec.manifest/' in file.read(100)
    except OSError:
        return False


def verify_files(artifact_dir: Path, manifest: Manifest, sha256: Callable[[Path], str] = file_sha256) -> list[str]:
    """Hash every file that the manifest names, look for others; return what is wrong, one line a file.

    `sha256` returns a file's digest; one that knows some already need not read them (read_before.py).
    """
    root = artifact_dir.resolve()
    problems = in_threads(lambda record: problem_of(root, record, sha256), manifest.files)
    differing = [f"{record.path}: {found}" for record, found in zip(manifest.files, problems, strict=True) if found]
    others = unlisted(root, [record.path for record in manifest.files])
    return [*differing, *(f"{path}: the manifest does not name it" for path in others)]


def problem_of(root: Path, record: FileRecord, sha256: Callable[[Path], str] = file_sha256) -> str | None:
    """Return how a file below the resolved directory `root` differs from its record, or None."""
    path = root / record.path
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return "missing"
    if not stat.S_ISREG(status.st_mode) or path.resolve() != path:
        return "not a regular file of the artifact"
    if status.st_size != record.size:
        return f"has {status.st_size} bytes, {record.size} were recorded"
    return None if sha256(path) == record.sha256 else "sha256 differs"


def _load_document(path: Path) -> Any:
    where, hint = str(path.parent), "trtspec build RECIPE makes one"
    try:
        if not path.parent.is_dir():
            raise TrtspecError("there is no artifact: no such directory", where=where, hint=hint)
        if not path.is_file():
            raise TrtspecError(f"not an artifact: it has no {MANIFEST}", where=where, hint=hint)
        return json.loads(read_bounded(path, MAX_BYTES))
    except OSError as error:
        raise TrtspecError(unreadable(error), where=str(path), hint="build the artifact again") from error
    except (ValueError, RecursionError) as error:
        raise TrtspecError(f"not valid JSON: {error}", where=str(path), hint="build the artifact again") from error


def _first_of(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{'.'.join(map(str, first['loc']))}: {plain_words(first['msg'])}"
