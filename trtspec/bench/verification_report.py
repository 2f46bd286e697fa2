# SPDX-License-Identifier: Apache-2.0
"""Store verification results: this user's record of an artifact, and the report in the artifact.

`verify` and `bench --gates` write the same record to this user's state directory, keyed by the SHA-256 of the manifest
and the machine; `deploy` and `readiness` read it. The copy in the artifact, reports/verify.json, is for people and CI.
It is untrusted, because anyone who handled the artifact could have written it, unless its SHA-256 is given
(`trusted_report`).
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Any

from trtspec.bench.documents import read_record, records_dir, this_machine, write_record
from trtspec.bench.gates import SkippedCheck, VerificationCheck, VerificationReport
from trtspec.bench.speedup import Speedup
from trtspec.checkpoints.safe_json import parse_object
from trtspec.core.errors import DigestMismatch, TrtspecError, os_error_remedy
from trtspec.core.files import UnreadableFile, describe_read_error, read_bounded, replace_file
from trtspec.store.artifact import manifest_sha256
from trtspec.store.artifact_paths import REPORTS

SCHEMA = "trtspec.verified/1"
REPORT = f"{REPORTS}/verify.json"
MAX_BYTES, MAX_VALUES = 4 << 20, 100_000


@dataclass(frozen=True)
class _Document:
    """The fields of `VerificationReport.as_dict` that are read back."""

    acceptance: str
    checks: tuple[VerificationCheck, ...]
    manifest: str
    left_out: tuple[SkippedCheck, ...] = ()


def make_report(
    root: Path,
    acceptance: str,
    checks: Sequence[VerificationCheck],
    left_out: Sequence[SkippedCheck] = (),
    speedup: Speedup | None = None,
) -> VerificationReport:
    """Return the verification of the artifact in `root`."""
    return VerificationReport(tuple(checks), acceptance, manifest_sha256(root), tuple(left_out), speedup)


def store_verification(
    root: Path, verification: VerificationReport, on_unwritten: Callable[[TrtspecError], None], out: Path | None = None
) -> None:
    """Save a verification, and write its report into the artifact or to `out`.

    `on_unwritten` receives the errors; only one of `out` is raised.
    """
    try:
        save_verification(verification)
    except TrtspecError as error:
        on_unwritten(error)
    if out:
        return write_report(out, verification)
    try:
        write_report(root / REPORT, verification, follow=False)
    except TrtspecError as error:
        on_unwritten(error)


def save_verification(verification: VerificationReport) -> None:
    """Save this user's verification of an artifact for later commands on this machine; may raise TrtspecError."""
    path = _record_path(verification.manifest_sha256)
    try:
        write_record(path, {"schema": SCHEMA, "machine": this_machine(), **verification.as_dict()})
    except OSError as error:
        hint = (
            os_error_remedy(error) or "free space or fix permissions there, or set TRTSPEC_STATE to another directory"
        )
        message = f"the verification cannot be saved: {error.strerror}"
        raise TrtspecError(message, where=str(path), hint=hint) from None


def write_report(path: Path, verification: VerificationReport, *, follow: bool = True) -> None:
    """Write the report for people and CI atomically; raise TrtspecError if that fails.

    Without `follow`, as for reports in an artifact, the directory must not be a symbolic link.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        data = json.dumps(verification.as_dict(), indent=1).encode() + b"\n"
        replace_file(path, data, follow=follow)
    except OSError as error:
        hint = "if the artifact is read-only, use --report FILE"
        raise TrtspecError(f"the report cannot be written: {error.strerror}", where=str(path), hint=hint) from None


def read_verification(root: Path) -> VerificationReport | None:
    """Return this user's saved verification of this artifact on this machine, or None."""
    return load_verification(root)[0]


def load_verification(root: Path) -> tuple[VerificationReport | None, datetime | None]:
    """Return the result of `read_verification` and the time when it was saved."""
    sha256 = manifest_sha256(root)
    path = _record_path(sha256)
    if (data := read_record(path)) is None:
        return None, None
    try:
        document = parse_object(data, MAX_VALUES)
    except ValueError:
        return None, None
    if document.get("schema") != SCHEMA or document.get("machine") != this_machine():
        return None, None
    found = _verification(data, sha256)
    return found, datetime.fromtimestamp(path.stat().st_mtime, timezone.utc) if found else None


def read_untrusted_report(root: Path) -> VerificationReport | None:
    """Return the untrusted report in the artifact if it matches the manifest, or None."""
    try:
        return _verification(_copy(root), manifest_sha256(root))
    except OSError:
        return None


def trusted_report(root: Path, sha256: str) -> VerificationReport:
    """Return the report in the artifact; raise DigestMismatch unless its SHA-256 is `sha256`."""
    path, hint = root / REPORT, "`trtspec verify` prints the digest of its report"
    try:
        data = _copy(root)
    except OSError as error:
        raise DigestMismatch(describe_read_error(error), where=str(path), hint=hint) from None
    if (found := hashlib.sha256(data).hexdigest()) != sha256:
        message = f"digest of the report is sha256:{found}, expected sha256:{sha256}"
        raise DigestMismatch(message, where=str(path), hint=hint)
    if (report := _verification(data, manifest_sha256(root))) is None:
        raise DigestMismatch("the report is not about this artifact", where=str(path), hint=hint)
    return report


def _copy(root: Path) -> bytes:
    if (root / REPORTS).is_symlink():
        raise UnreadableFile(None, f"{REPORTS} is a symbolic link, which is not allowed here", str(root / REPORTS))
    return read_bounded(root / REPORT, MAX_BYTES, follow=False)


def _record_path(sha256: str) -> Path:
    return records_dir("verified") / f"{sha256}.json"


def _verification(data: bytes, manifest: str) -> VerificationReport | None:
    """Return the parsed report, or None if it is malformed or about another manifest."""
    from pydantic import ValidationError

    try:
        parse_object(data, MAX_VALUES)  # checks size limits, and is stricter than pydantic
        found: _Document = _reader().validate_json(data, strict=True)
    except (ValueError, ValidationError):
        return None
    if found.manifest != manifest:
        return None
    return VerificationReport(found.checks, found.acceptance, found.manifest, found.left_out)


@cache
def _reader() -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(_Document)
