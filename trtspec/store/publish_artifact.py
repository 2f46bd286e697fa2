# SPDX-License-Identifier: Apache-2.0
"""Publish an artifact atomically.

Only files listed in a manifest, `reports/` and Python's byte code are ever deleted.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Literal

from trtspec.core.atomic_dir import exclusive_writer, is_free, remove_leftovers, replace_directory, temporary_sibling
from trtspec.core.errors import StepError, TrtspecError, os_error_remedy
from trtspec.core.failpoint import failpoint
from trtspec.core.files import create_file, fsync_path, sync_directories
from trtspec.core.hashing import copy_hashed
from trtspec.store.artifact_contents import unlisted
from trtspec.store.artifact_paths import MANIFEST, REPORTS
from trtspec.store.manifest import Manifest, file_mismatch, has_manifest, load_manifest

MOST_REPORTS = 256
_CANNOT_LINK = {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.EOPNOTSUPP}


def check_artifact_path(out: Path) -> None:
    """Raise TrtspecError if it is already known that no artifact can be published at `out`."""
    out = _resolved(out)
    nearest = next(path for path in out.parents if os.path.lexists(path))
    if not nearest.is_dir():
        raise TrtspecError(
            f"{nearest} is a file, not a directory", where=str(out), hint="choose another directory with --out"
        )
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise TrtspecError(f"{nearest} is not writable", where=str(out), hint="choose another directory with --out")
    if old := _manifest_at(out):
        _check_only_listed(out, old)


def publish_artifact(out: Path, files: Mapping[str, Path], manifest: Manifest) -> Literal["published", "unchanged"]:
    """Make `out` the artifact of `manifest`; each file is hard-linked or copied from its path in `files`.

    Reports of an existing artifact from the same steps are kept. TrtspecError if `out` is not an artifact or contains
    unlisted files; StepError for OS errors. After an error `out` is unchanged.
    """
    if set(files) != {record.path for record in manifest.files}:
        raise ValueError("the manifest and the files to publish differ")
    out = _resolved(out)
    with _explain_os_errors(out), exclusive_writer(out):
        old = _manifest_at(out)
        if old == manifest and _holds(out, files, manifest):
            return "unchanged"
        _check_only_listed(out, old or manifest)
        _publish(out, files, manifest, keep_reports=old is not None and old.steps == manifest.steps)
        return "published"


def _resolved(out: Path) -> Path:
    """Return `out` with links resolved; TrtspecError for the root directory."""
    out = Path(os.path.realpath(out))
    if not out.name:
        raise TrtspecError("an artifact needs its own directory", where=str(out), hint="choose a directory below it")
    return out


def _publish(out: Path, files: Mapping[str, Path], manifest: Manifest, *, keep_reports: bool) -> None:
    temporary = temporary_sibling(out, "tmp")
    try:
        temporary.mkdir()
        digests = {record.path: record.sha256 for record in manifest.files}
        for path, source in files.items():
            _link_or_copy(source, temporary / path, sha256=digests[path])
        if keep_reports:
            _carry_reports(out, temporary)
        failpoint("publish.before-manifest")
        create_file(temporary / MANIFEST, manifest.render())
        fsync_path(temporary / MANIFEST)
        sync_directories(temporary)
        replace_directory(temporary, out)
    finally:
        remove_leftovers(out)


def _manifest_at(out: Path) -> Manifest | None:
    """Return the manifest of the artifact at `out`, or None if it is missing or unreadable."""
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
        raise TrtspecError(
            f"the artifact to replace contains files that are not its own: {', '.join(foreign[:3])}",
            where=str(out),
            hint="move them away; publishing would delete them",
        )


def _carry_reports(out: Path, temporary: Path) -> None:
    """Keep up to MOST_REPORTS regular files of the reports; links and special files are not kept."""
    if (out / REPORTS).is_symlink():
        return
    found = (Path(directory) / name for directory, _, names in os.walk(out / REPORTS) for name in sorted(names))
    for report in islice(found, MOST_REPORTS):
        target = temporary / report.relative_to(out)
        if stat.S_ISREG(report.lstat().st_mode) and not target.exists():
            _link_or_copy(report, target)


def _link_or_copy(source: Path, target: Path, *, sha256: str = "") -> None:
    """Hard-link a file, or copy it if linking fails; StepError if a copy does not match `sha256`."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(source, target)
    except OSError as error:
        if error.errno not in _CANNOT_LINK:
            raise
        found = copy_hashed(source, target)
        if sha256 not in ("", found):
            raise StepError("the file was damaged in the store", where=str(source), hint="build again") from None
        target.chmod(source.stat().st_mode & 0o777)
        fsync_path(target)


@contextmanager
def _explain_os_errors(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StepError(
            f"cannot publish the artifact: {error.strerror}: {error.filename or out.parent}",
            where=str(out),
            hint=os_error_remedy(error)
            or "the old contents are unchanged; free disk space or fix permissions, then build again",
        ) from error
