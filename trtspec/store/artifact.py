# SPDX-License-Identifier: Apache-2.0
"""An artifact: its manifest, the verification of the listed files, and its atomic publication.

The manifest, `manifest.json`, is the only document that deployment and measurement read about a build. It is read as
untrusted input: size, schema and paths are checked. This module does not depend on the store that the files came from.
Only files listed in a manifest, `reports/`, `attestations/` and Python's byte code are ever deleted.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from trtspec.core.diagnostics import first_invalid, quote_value
from trtspec.core.errors import DigestMismatch, StepError, TrtspecError, VerificationFailed, os_error_remedy
from trtspec.core.files import (
    create_file,
    describe_read_error,
    exclusive_writer,
    failpoint,
    fsync_path,
    is_free,
    open_regular,
    read_bounded,
    remove_leftovers,
    replace_directory,
    sync_directories,
    temporary_sibling,
)
from trtspec.core.hashing import Segments, copy_hashed, file_segments
from trtspec.recipe.resolve import ResolvedRecipe
from trtspec.store.artifact_paths import ATTESTATIONS, MANIFEST, REPORTS, unlisted
from trtspec.store.digest import dump_checksummed_text, has_valid_checksum
from trtspec.store.file_records import FileRecord, Sha256

SCHEMA = "trtspec.manifest/4"
EARLIER = tuple(f"trtspec.manifest/{version}" for version in (1, 2, 3))
MAX_BYTES = 16 << 20
BUILD_AGAIN = "build the artifact again"
SIMULATED = "the acceptance of drafts is simulated, so its texts are not its target's"
DEPLOY_REAL = "it is the temporary artifact of a capacity test; deploy the artifact that it was made from"


def _not_itself(record: FileRecord) -> FileRecord:
    if record.path == MANIFEST:
        raise ValueError("the manifest cannot list itself")
    return record


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class StepRecord(_Record):
    """A step whose output is part of the artifact."""

    name: str
    key: Sha256


class DeviceMemory(_Record):
    """Planned memory of serving on one device ("cpu" or a GPU number), in bytes."""

    id: str
    weights_bytes: int
    kv_cache_bytes: int
    draft_bytes: int
    activation_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.weights_bytes + self.kv_cache_bytes + self.draft_bytes + self.activation_bytes


class BackendRecord(_Record):
    """The chosen engine and the reason for the choice."""

    name: str
    why: str


class Manifest(_Record):
    """Outputs, inputs, tools and GPU of a build; equal manifests describe equal artifacts.

    It contains no time and no location: recipe paths are reduced to names. `memory` is empty if it cannot be estimated.
    `target_key` is equal for artifacts whose converted targets differ at most in an embedded draft head, and empty if
    nothing is converted. `simulated_acceptance` is empty except in the temporary artifacts of capacity tests, which
    have the forced acceptance rate of each position of a draft.
    """

    recipe: ResolvedRecipe
    steps: tuple[StepRecord, ...]
    files: tuple[Annotated[FileRecord, AfterValidator(_not_itself)], ...]
    tools: dict[str, str]
    gpu: dict[str, Any]
    backend: BackendRecord
    memory: tuple[DeviceMemory, ...] = ()
    target_key: Sha256 | Literal[""] = ""
    simulated_acceptance: tuple[Annotated[float, Field(ge=0, le=1)], ...] = ()

    def render(self) -> bytes:
        """Return the content of manifest.json, with the schema first and a digest of the preceding text last."""
        document = self.model_dump(mode="json")
        if not self.simulated_acceptance:
            del document["simulated_acceptance"]
        return dump_checksummed_text({"schema": SCHEMA, **document, "recipe": self.recipe.as_dict()})

    def check_not_simulated(self, where: Path) -> None:
        """Raise VerificationFailed if drafts are accepted by simulation; `where` is the artifact's directory."""
        if self.simulated_acceptance:
            raise VerificationFailed(SIMULATED, where=str(where), hint=DEPLOY_REAL)


@dataclass(frozen=True)
class Artifact:
    """An artifact's directory, its manifest, and the manifest's SHA-256, which identifies the artifact."""

    root: Path
    manifest: Manifest
    digest: str

    @property
    def recipe(self) -> ResolvedRecipe:
        """The resolved recipe that the artifact was built from."""
        return self.manifest.recipe


def load_artifact(root: Path, expected: str = "") -> Artifact:
    """Load the artifact in the directory `root`; raises like `load_manifest`."""
    data = _read(root / MANIFEST)
    digest = hashlib.sha256(data).hexdigest()
    if expected and digest != expected:
        raise DigestMismatch(
            f"this is not the requested artifact: its manifest is sha256:{digest}, expected sha256:{expected}",
            where=str(root / MANIFEST),
            hint="get the artifact again from where it was built, or check the digest",
        )
    return Artifact(root, parse_manifest(str(root / MANIFEST), data), digest)


def load_manifest(artifact_dir: Path, expected: str = "") -> Manifest:
    """Load an artifact's manifest.

    Raises TrtspecError if it is missing or unreadable for this version, and DigestMismatch if it was modified or if its
    SHA-256 differs from `expected`, unless that is empty.
    """
    return load_artifact(artifact_dir, expected).manifest


def parse_manifest(where: str, data: bytes) -> Manifest:
    """Parse the bytes of a manifest; raises like `load_manifest`, with errors located at `where`."""
    document = _parse(where, data)
    schema = document.pop("schema", None) if isinstance(document, dict) else None
    if schema != SCHEMA:
        message = f"its schema is {quote_value(schema)}; this trtspec reads {SCHEMA!r}"
        raise TrtspecError(message, where=where, hint=_schema_hint(schema))
    if not has_valid_checksum(data):
        raise DigestMismatch("the manifest was modified: its digest differs", where=where)
    del document["digest"]
    try:
        recipe = ResolvedRecipe.from_dict(document.pop("recipe", None))
        return Manifest.model_validate({**document, "recipe": recipe})
    except ValidationError as error:
        raise TrtspecError(str(first_invalid(error)), where=where, hint=BUILD_AGAIN) from error


def manifest_sha256(artifact_dir: Path) -> str:
    """Return the SHA-256 of an artifact's manifest, which identifies it; raises TrtspecError if unreadable."""
    return hashlib.sha256(_read(artifact_dir / MANIFEST)).hexdigest()


def parse_expected(text: str, option: str = "--manifest") -> str:
    """Return the hex digits of "sha256:HEX", and "" for ""; raises TrtspecError for any other format."""
    match = re.fullmatch(r"(?:sha256:([0-9a-f]{64}))?", text)
    if not match:
        hint = "`trtspec build` prints it; sha256sum build/NAME/manifest.json computes it"
        raise TrtspecError(f"{option} {text[:100]!r}: expected sha256: and 64 hex digits", hint=hint)
    return match[1] or ""


def _schema_hint(schema: object) -> str | None:
    if schema in EARLIER:
        return "an earlier version of trtspec built it, with other digests of its files; build it again"
    ours = isinstance(schema, str) and schema.startswith("trtspec.manifest/")
    return "read it with the trtspec that wrote it, or build it again" if ours else None


def has_manifest(artifact_dir: Path) -> bool:
    """Return True if a directory contains a trtspec manifest, even an unreadable one."""
    try:
        with open_regular(artifact_dir / MANIFEST, follow=False) as file:
            return b'"trtspec.manifest/' in file.read(100)
    except OSError:
        return False


def verify_files(
    artifact_dir: Path, manifest: Manifest, known: Callable[[Path], str | None] = lambda path: None
) -> list[str]:
    """Hash every file in the manifest and search for unlisted ones; return the problems, one line per file.

    The segments of all files are hashed in parallel. A file for which `known` returns the recorded digest is not hashed
    (artifact_cache.py).
    """
    root = artifact_dir.resolve()
    problems = {record.path: _outer_mismatch(root, record) for record in manifest.files}
    unknown = [
        record for record in manifest.files if not problems[record.path] and known(root / record.path) != record.digest
    ]
    hashed = file_segments([root / record.path for record in unknown])
    problems |= {record.path: record.difference(found) for record, found in zip(unknown, hashed, strict=True)}
    others = unlisted(root, [record.path for record in manifest.files])
    differing = [f"{path}: {found}" for path, found in problems.items() if found]
    return [*differing, *(f"{path}: not listed in the manifest" for path in others)]


def file_mismatch(root: Path, record: FileRecord) -> str | None:
    """Return the difference between a file below the resolved directory `root` and its record, or None."""
    return _outer_mismatch(root, record) or record.difference(*file_segments([root / record.path]))


def _outer_mismatch(root: Path, record: FileRecord) -> str | None:
    """Return the difference in kind or size between a file and its record, or None."""
    path = root / record.path
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return "missing"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if not stat.S_ISREG(status.st_mode) or path.resolve() != path:
        return "not a regular file of the artifact"
    return None if status.st_size == record.size else f"has {status.st_size} bytes, {record.size} were recorded"


def _read(path: Path) -> bytes:
    where, hint = str(path.parent), "build one with trtspec build RECIPE"
    try:
        if not path.parent.is_dir():
            raise TrtspecError("no artifact: the directory does not exist", where=where, hint=hint)
        if not os.path.lexists(path):
            raise TrtspecError(f"not an artifact: {MANIFEST} is missing", where=where, hint=hint)
        return read_bounded(path, MAX_BYTES, follow=False)
    except OSError as error:
        hint = os_error_remedy(error) or BUILD_AGAIN
        raise TrtspecError(describe_read_error(error), where=str(path), hint=hint) from error


def _parse(where: str, data: bytes) -> Any:
    try:
        document = json.loads(data)
        if b"\\ud" in data.lower():  # an unpaired surrogate can neither be printed nor be part of a file name
            json.dumps(document, ensure_ascii=False).encode()
        return document
    except UnicodeEncodeError:
        raise TrtspecError("it contains an unpaired surrogate", where=where, hint=BUILD_AGAIN) from None
    except (ValueError, RecursionError) as error:
        raise TrtspecError(f"not valid JSON: {error}", where=where, hint=BUILD_AGAIN) from error


MOST_REPORTS = 256
_CANNOT_LINK = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP}


def check_artifact_path(out: Path) -> None:
    """Raise TrtspecError if it is already certain that an artifact cannot be published at `out`."""
    out = _resolved(out)
    nearest = next(path for path in out.parents if os.path.lexists(path))
    hint = "choose another directory with --out"
    if not nearest.is_dir():
        raise TrtspecError(f"{nearest} is a file, not a directory", where=str(out), hint=hint)
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise TrtspecError(f"{nearest} is not writable", where=str(out), hint=hint)
    if old := _manifest_at(out):
        _check_only_listed(out, old)


def publish_artifact(
    out: Path, files: Mapping[str, Path], manifest: Manifest, document: bytes = b""
) -> Literal["published", "unchanged"]:
    """Publish an artifact at `out`; each file is hard-linked or copied from its path in `files`.

    `document` is the content of manifest.json (default: the rendered manifest). An artifact keeps its identity only
    with its original document, which another version of trtspec may have rendered differently.
    Return "unchanged" if the artifact already exists. Reports of an existing artifact from the same steps are kept, and
    so are attestations of an equal manifest.
    Raises TrtspecError if `out` is not an artifact or contains unlisted files, and StepError for OS errors. After an
    error, `out` is unchanged.
    """
    if set(files) != {record.path for record in manifest.files}:
        raise ValueError("the manifest and the files to publish differ")
    out = _resolved(out)
    with _explain_os_errors(out), exclusive_writer(out):
        old = _manifest_at(out)
        document = document or manifest.render()
        if old == manifest and _read(out / MANIFEST) == document and _holds(out, files, manifest):
            return "unchanged"
        _check_only_listed(out, old or manifest)
        same = old is not None and _read(out / MANIFEST) == document
        carried = [*([REPORTS] if old and old.steps == manifest.steps else []), *([ATTESTATIONS] if same else [])]
        _publish(out, files, manifest, document, carried)
        return "published"


def _resolved(out: Path) -> Path:
    """Return `out` with links resolved; raises TrtspecError for the root directory."""
    out = Path(os.path.realpath(out))
    if not out.name:
        raise TrtspecError("an artifact needs its own directory", where=str(out), hint="choose a directory below it")
    return out


def _publish(out: Path, files: Mapping[str, Path], manifest: Manifest, document: bytes, carried: Sequence[str]) -> None:
    temporary = temporary_sibling(out, "tmp")
    try:
        temporary.mkdir()
        records = {record.path: record.segments for record in manifest.files}
        for path, source in files.items():
            _link_or_copy(source, temporary / path, segments=records[path])
        for directory in carried:
            _carry(out, temporary, directory)
        failpoint("publish.before-manifest")
        create_file(temporary / MANIFEST, document)
        sync_directories(temporary, [temporary / MANIFEST])
        replace_directory(temporary, out)
    finally:
        remove_leftovers(out)


def _manifest_at(out: Path) -> Manifest | None:
    """Return the manifest of the artifact at `out`, or None if `out` is free or its manifest is unreadable.

    Raises TrtspecError if `out` contains something other than an artifact.
    """
    if is_free(out):
        return None
    if not has_manifest(out):
        hint = "move it away, or choose another directory with --out"
        raise TrtspecError("not an artifact; refusing to overwrite", where=str(out), hint=hint)
    try:
        return load_manifest(out)
    except TrtspecError:  # damaged or from another version: an artifact, but not the requested one
        return None


def _holds(out: Path, files: Mapping[str, Path], manifest: Manifest) -> bool:
    return all(
        _is_same_file(out / record.path, files[record.path]) or file_mismatch(out, record) is None
        for record in manifest.files
    )


def _is_same_file(path: Path, source: Path) -> bool:
    try:
        return os.path.samestat(path.lstat(), source.stat())
    except (FileNotFoundError, NotADirectoryError):
        return False


def _check_only_listed(out: Path, manifest: Manifest) -> None:
    if foreign := unlisted(out, [record.path for record in manifest.files]):
        message = f"the artifact to replace contains files that are not its own: {', '.join(foreign[:3])}"
        raise TrtspecError(message, where=str(out), hint="move them away; publishing would delete them")


def _carry(out: Path, temporary: Path, directory: str) -> None:
    """Link or copy up to MOST_REPORTS regular files of a directory; links and special files are left out."""
    if (out / directory).is_symlink():
        return
    found = (Path(parent) / name for parent, _, names in os.walk(out / directory) for name in sorted(names))
    for report in islice(found, MOST_REPORTS):
        target = temporary / report.relative_to(out)
        if stat.S_ISREG(report.lstat().st_mode) and not target.exists():
            _link_or_copy(report, target)


def _link_or_copy(source: Path, target: Path, *, segments: Segments | None = None) -> None:
    """Hard-link a file, or copy it if linking fails; raises StepError if the copy's segments differ."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _CANNOT_LINK:
            raise
        found = copy_hashed(source, target)
        if segments not in (None, found):
            raise StepError("the file was damaged in the store", where=str(source), hint="build again") from None
        target.chmod(source.stat().st_mode & 0o777)
        fsync_path(target)


@contextmanager
def _explain_os_errors(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        message = f"cannot publish the artifact: {error.strerror}: {error.filename or out.parent}"
        hint = "the old contents are unchanged; free disk space or fix permissions, then try again"
        raise StepError(message, where=str(out), hint=os_error_remedy(error) or hint) from error
