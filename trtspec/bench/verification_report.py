# SPDX-License-Identifier: Apache-2.0
"""What was found of an artifact: the checks, what was left out and why, and the record that keeps both.

`verify` and `bench --gates` write the same record, among this user's own, by the SHA-256 of the manifest and the
machine; `deploy` and `checklist` read it. The copy in the artifact, reports/verify.json, is for people and CI: whoever
had the artifact in their hands could have written it, so no decision follows from it, unless its SHA-256 is named
(`trusted_report`). Knows nothing of how anything is measured.
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

from trtspec.bench.records import read_record, records_dir, this_machine, write_record
from trtspec.bench.speedup import FAILS, HOLDS, UNDECIDED, Speedup
from trtspec.checkpoints.safe_json import parse_object
from trtspec.core.errors import DigestMismatch, GateNotMet, TrtspecError, VerificationFailed, remedy_of
from trtspec.core.files import UnfitFile, read_bounded, replace_file, unreadable
from trtspec.store.artifact_paths import REPORTS
from trtspec.store.manifest import manifest_sha256

FORMAT_VERSION = 1
SCHEMA = "trtspec.verified/1"
REPORT = f"{REPORTS}/verify.json"
MAX_BYTES, MAX_VALUES = 4 << 20, 100_000
PROCESS, SERVER = "process", "server"  # what measured a check
# Why a check was left out: on request, it needs the running server, the engine cannot tell, there is no source.
ON_REQUEST, NEEDS_SERVER, NOT_TOLD, NO_SOURCE = "request", "server", "engine", "source"
FILES = "files"  # the check of the artifact itself, which `verify` makes and `bench --gates` does not
FAIL, PASS = "fail", "pass"  # what an undecided gate does
POLICY = "TRTSPEC_UNDECIDED"  # what --undecided sets, for this process and those that it starts


Scalar = bool | int | float | str | None


@dataclass(frozen=True)
class Check:
    """One claim and whether it holds; `limit` is what `value` had to reach.

    `gate` is the key of the recipe's gates that asks for it, `measured_by` "process" or "server"; both may be "".
    `state` is "holds", "fails" or "undecided"; `ok` of an undecided check follows the policy (`under`). `seconds` is
    what it took; gates that one measurement decides share its time.
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

    def under(self, policy: str) -> Check:
        """Return the check with `ok` as the policy for undecided checks, "fail" or "pass", has it."""
        return replace(self, ok=policy == PASS) if self.state == UNDECIDED else self


@dataclass(frozen=True)
class LeftOut:
    """A check that was not made: `reason` is "request", "server", "engine" or "source", `why` says it to people."""

    name: str
    reason: str
    why: str


@dataclass(frozen=True)
class Verification:
    """All checks of an artifact, the rule that it accepts drafts by, and the manifest they are about.

    `speedup` is that of the engine that serves it, where it was measured. `warnings` are about how it was measured.
    """

    checks: tuple[Check, ...]
    acceptance: str
    manifest_sha256: str
    left_out: tuple[LeftOut, ...] = ()
    speedup: Speedup | None = None
    warnings: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Return whether everything holds."""
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
        """Return what is wrong: GateNotMet where only limits of the recipe are missed, else VerificationFailed."""
        failed = [check for check in self.checks if not check.ok]
        error = GateNotMet if all(check.name.startswith("min_") for check in failed) else VerificationFailed
        return error("; ".join(f"{check.name}: {check.detail}" for check in failed)) if failed else None

    @property
    def undecided(self) -> tuple[Check, ...]:
        """Return the checks whose measurement does not decide their limit."""
        return tuple(check for check in self.checks if check.state == UNDECIDED)

    def under(self, policy: str) -> Verification:
        """Return it with undecided checks failing or passing, by the policy "fail" or "pass"."""
        return replace(self, checks=tuple(check.under(policy) for check in self.checks))

    def without(self, gates: Iterable[str]) -> Verification:
        """Return it without the checks of some gates."""
        unwanted = frozenset(gates)
        kept = tuple(check for check in self.checks if (check.gate or check.name) not in unwanted)
        return replace(self, checks=kept)

    def after(self, earlier: Verification | None) -> Verification:
        """Return it with what an earlier one found beside; what a server measured is not replaced by this process."""
        found = {check.name: check for check in (earlier.checks if earlier else ())}
        weaker = {name for name, check in found.items() if check.measured_by == SERVER}
        found |= {
            check.name: check for check in self.checks if check.measured_by != PROCESS or check.name not in weaker
        }
        left_out = tuple(each for each in self.left_out if each.name not in found)
        return replace(self, checks=tuple(found.values()), left_out=left_out)


def undecided_policy(environment: Mapping[str, str] = os.environ) -> str:
    """Return what an undecided gate does: what --undecided asks for, else "fail" in CI and "pass" elsewhere.

    GitHub, GitLab and most other CI services set CI=true.
    """
    asked = environment.get(POLICY, "")
    if asked in (FAIL, PASS):
        return asked
    return FAIL if environment.get("CI", "").strip().lower() not in ("", "0", "false", "no") else PASS


@dataclass(frozen=True)
class _Document:
    """What is read of `Verification.as_dict`."""

    acceptance: str
    checks: tuple[Check, ...]
    manifest: str
    left_out: tuple[LeftOut, ...] = ()


def verification_of(
    root: Path,
    acceptance: str,
    checks: Sequence[Check],
    left_out: Sequence[LeftOut] = (),
    speedup: Speedup | None = None,
) -> Verification:
    """Return what was found of the artifact as it lies there."""
    return Verification(tuple(checks), acceptance, manifest_sha256(root), tuple(left_out), speedup)


def keep_verification(root: Path, verification: Verification) -> None:
    """Keep what this user found of an artifact, for the decisions on this machine; raises TrtspecError."""
    path = _record_of(verification.manifest_sha256)
    try:
        write_record(path, {"schema": SCHEMA, "machine": this_machine(), **verification.as_dict()})
    except OSError as error:
        hint = remedy_of(error) or "give it room or access there, or point TRTSPEC_STATE at another directory"
        message = f"what was found cannot be kept: {error.strerror}"
        raise TrtspecError(message, where=str(path), hint=hint) from None


def write_report(path: Path, verification: Verification, *, follow: bool = True) -> None:
    """Write the report whole or not at all, for people and CI; raises TrtspecError where that cannot be.

    Without `follow`, as in an artifact, its directory may be no link.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        data = json.dumps(verification.as_dict(), indent=1).encode() + b"\n"
        replace_file(path, data, follow=follow)
    except OSError as error:
        hint = "the artifact may be read-only: verify it with --report FILE"
        raise TrtspecError(f"the report cannot be written: {error.strerror}", where=str(path), hint=hint) from None


def read_verification(root: Path) -> Verification | None:
    """Return what this user found of this very artifact on this machine; None where nothing was kept."""
    return kept_verification(root)[0]


def kept_verification(root: Path) -> tuple[Verification | None, datetime | None]:
    """Return what `read_verification` does, and when it was kept."""
    sha256 = manifest_sha256(root)
    path = _record_of(sha256)
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


def read_copy(root: Path) -> Verification | None:
    """Return the report that lies in the artifact, which anybody may have written, if it is about this manifest."""
    try:
        return _verification(_copy(root), manifest_sha256(root))
    except OSError:
        return None


def trusted_report(root: Path, sha256: str) -> Verification:
    """Return the report that lies in the artifact; DigestMismatch unless it is the one of this SHA-256."""
    path, hint = root / REPORT, "`trtspec verify` prints the digest of the report that it writes"
    try:
        data = _copy(root)
    except OSError as error:
        raise DigestMismatch(unreadable(error), where=str(path), hint=hint) from None
    if (found := hashlib.sha256(data).hexdigest()) != sha256:
        message = f"this is not the report to be trusted: it is sha256:{found}, expected sha256:{sha256}"
        raise DigestMismatch(message, where=str(path), hint=hint)
    if (report := _verification(data, manifest_sha256(root))) is None:
        raise DigestMismatch("no report about the artifact as it lies here", where=str(path), hint=hint)
    return report


def _copy(root: Path) -> bytes:
    if (root / REPORTS).is_symlink():
        raise UnfitFile(None, f"{REPORTS} is a symbolic link, which is not followed here", str(root / REPORTS))
    return read_bounded(root / REPORT, MAX_BYTES, follow=False)


def _record_of(sha256: str) -> Path:
    return records_dir("verified") / f"{sha256}.json"


def _verification(data: bytes, manifest: str) -> Verification | None:
    """Return a report, each value of its type; None for what is no report, or one about another manifest."""
    from pydantic import ValidationError

    try:
        parse_object(data, MAX_VALUES)  # within bounds, and stricter than what follows
        found: _Document = _reader().validate_json(data, strict=True)
    except (ValueError, ValidationError):
        return None
    if found.manifest != manifest:
        return None
    return Verification(found.checks, found.acceptance, found.manifest, found.left_out)


@cache
def _reader() -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(_Document)
