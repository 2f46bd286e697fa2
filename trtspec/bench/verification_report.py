# SPDX-License-Identifier: Apache-2.0
"""Store verification results: the checks, the skipped checks with reasons, and the saved record.

`verify` and `bench --gates` write the same record to this user's state directory, keyed by the SHA-256 of the manifest
and the machine; `deploy` and `readiness` read it. The copy in the artifact, reports/verify.json, is for people and CI.
It is untrusted, because anyone who handled the artifact could have written it, unless its SHA-256 is given
(`trusted_report`).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from functools import cache
from pathlib import Path
from typing import Any

from trtspec.bench.documents import read_record, records_dir, this_machine, write_record
from trtspec.bench.speedup import FAILS, HOLDS, UNDECIDED, Speedup
from trtspec.checkpoints.safe_json import parse_object
from trtspec.core.errors import DigestMismatch, GateNotMet, TrtspecError, VerificationFailed, os_error_remedy
from trtspec.core.files import UnreadableFile, describe_read_error, read_bounded, replace_file
from trtspec.store.artifact import manifest_sha256
from trtspec.store.artifact_paths import REPORTS

FORMAT_VERSION = 1
SCHEMA = "trtspec.verified/1"
REPORT = f"{REPORTS}/verify.json"
MAX_BYTES, MAX_VALUES = 4 << 20, 100_000
PROCESS, SERVER = "process", "server"  # what measured a check
# Why a check was skipped: on request, it needs the running server, the engine cannot report it, the source is missing.
ON_REQUEST, NEEDS_SERVER, NOT_REPORTED, NO_SOURCE = "request", "server", "engine", "source"
FILES = "files"  # the check of the artifact's files, run by `verify` but not by `bench --gates`
FAIL, PASS = "fail", "pass"  # the policies for undecided gates
POLICY = "TRTSPEC_UNDECIDED"  # set by --undecided for this process and its children


Scalar = bool | int | float | str | None


@dataclass(frozen=True)
class VerificationCheck:
    """One check and its result; `limit` is the required `value`.

    `gate` is the recipe's gate that requires it and `measured_by` is "process" or "server"; both may be "". `state` is
    "holds", "fails" or "undecided"; `ok` of an undecided check follows the policy (`under`). `seconds` is its duration;
    gates decided by one measurement share its time.
    """

    name: str
    ok: bool
    value: Scalar
    limit: Scalar
    detail: str
    gate: str = ""
    measured_by: str = ""
    state: str = ""
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.state not in (HOLDS, FAILS, UNDECIDED):
            object.__setattr__(self, "state", HOLDS if self.ok else FAILS)

    def under(self, policy: str) -> VerificationCheck:
        """Return the check with `ok` set by the policy for undecided checks, "fail" or "pass"."""
        return replace(self, ok=policy == PASS) if self.state == UNDECIDED else self


@dataclass(frozen=True)
class SkippedCheck:
    """A skipped check: `reason` is "request", "server", "engine" or "source", `why` is the explanation for users."""

    name: str
    reason: str
    why: str


@dataclass(frozen=True)
class VerificationReport:
    """All checks of an artifact, its acceptance rule, and the digest of its manifest.

    `speedup` is the measured speed-up on the engine that serves the artifact. `warnings` concern the measurement.
    """

    checks: tuple[VerificationCheck, ...]
    acceptance: str
    manifest_sha256: str
    left_out: tuple[SkippedCheck, ...] = ()
    speedup: Speedup | None = None
    warnings: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Return whether all checks pass."""
        return all(check.ok for check in self.checks)

    def as_dict(self) -> dict[str, Any]:
        """Return the document of `verify --json`."""
        return {
            "format_version": FORMAT_VERSION,
            "ok": self.ok,
            "acceptance": self.acceptance,
            **(self.speedup.as_dict() if self.speedup else {}),
            "checks": [{**asdict(check), "seconds": round(check.seconds, 3)} for check in self.checks],
            "left_out": [asdict(each) for each in self.left_out],
            "warnings": [*self.warnings],
            "manifest": self.manifest_sha256,
        }

    @property
    def failure(self) -> TrtspecError | None:
        """Return GateNotMet if only limits of the recipe are missed, VerificationFailed for other failures, or None."""
        failed = [check for check in self.checks if not check.ok]
        error = GateNotMet if all(check.name.startswith("min_") for check in failed) else VerificationFailed
        return error("; ".join(f"{check.name}: {check.detail}" for check in failed)) if failed else None

    @property
    def undecided(self) -> tuple[VerificationCheck, ...]:
        """Return the undecided checks."""
        return tuple(check for check in self.checks if check.state == UNDECIDED)

    def under(self, policy: str) -> VerificationReport:
        """Return a copy in which undecided checks fail or pass by the policy "fail" or "pass"."""
        return replace(self, checks=tuple(check.under(policy) for check in self.checks))

    def without(self, gates: Iterable[str]) -> VerificationReport:
        """Return a copy without the checks of the given gates."""
        unwanted = frozenset(gates)
        kept = tuple(check for check in self.checks if (check.gate or check.name) not in unwanted)
        return replace(self, checks=kept)

    def after(self, earlier: VerificationReport | None) -> VerificationReport:
        """Return a copy with the missing checks of an earlier verification.

        Checks measured on a server are not replaced by checks of this process.
        """
        found = {check.name: check for check in (earlier.checks if earlier else ())}
        weaker = {name for name, check in found.items() if check.measured_by == SERVER}
        found |= {
            check.name: check for check in self.checks if check.measured_by != PROCESS or check.name not in weaker
        }
        left_out = tuple(each for each in self.left_out if each.name not in found)
        return replace(self, checks=tuple(found.values()), left_out=left_out)


def undecided_policy(environment: Mapping[str, str] = os.environ) -> str:
    """Return the policy for undecided gates: from --undecided, else "fail" in CI and "pass" elsewhere.

    GitHub, GitLab and most other CI services set CI=true.
    """
    asked = environment.get(POLICY, "")
    if asked in (FAIL, PASS):
        return asked
    return FAIL if environment.get("CI", "").strip().lower() not in ("", "0", "false", "no") else PASS


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


def save_verification(root: Path, verification: VerificationReport) -> None:
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
