# SPDX-License-Identifier: Apache-2.0
"""What was found of an artifact: the checks, what was left out and why, and the report that keeps both.

`verify` and `bench --gates` write the same report, and `deploy` reads it. Knows nothing of how anything is measured.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from trtspec.artifacts.paths import MANIFEST, REPORTS
from trtspec.errors import GateNotMet, TrtspecError, VerificationFailed
from trtspec.files import replace_file
from trtspec.measure.speedup import FAILS, HOLDS, UNDECIDED, Speedup

FORMAT_VERSION = 1
REPORT = f"{REPORTS}/verify.json"
PROCESS, SERVER = "process", "server"  # what measured a check
# Why a check was left out: on request, it needs the running server, the engine cannot tell, there is no source.
ON_REQUEST, NEEDS_SERVER, NOT_TOLD, NO_SOURCE = "request", "server", "engine", "source"
FILES = "files"  # the check of the artifact itself, which `verify` makes and `bench --gates` does not
FAIL, PASS = "fail", "pass"  # what an undecided gate does
POLICY = "TRTSPEC_UNDECIDED"  # what --undecided sets, for this process and those that it starts


@dataclass(frozen=True)
class Check:
    """One claim and whether it holds; `limit` is what `value` had to reach.

    `gate` is the key of the recipe's gates that asks for it, `measured_by` "process" or "server"; both may be "".
    `state` is "holds", "fails" or "undecided"; `ok` of an undecided check follows the policy (`under`). `seconds` is
    what it took; gates that one measurement decides share its time.
    """

    name: str
    ok: bool
    value: Any
    limit: Any
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


def verification_of(
    root: Path,
    acceptance: str,
    checks: Sequence[Check],
    left_out: Sequence[LeftOut] = (),
    speedup: Speedup | None = None,
) -> Verification:
    """Return what was found of the artifact as it lies there."""
    return Verification(tuple(checks), acceptance, manifest_sha256(root), tuple(left_out), speedup)


def write_report(path: Path, verification: Verification) -> None:
    """Write the report whole or not at all; raises TrtspecError where that cannot be."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        data = json.dumps(verification.as_dict(), indent=1).encode() + b"\n"
        replace_file(path, data, path.with_suffix(f".{os.getpid()}.tmp"))
    except OSError as error:
        hint = "the artifact may be read-only: verify it with --report FILE"
        raise TrtspecError(f"the report cannot be written: {error.strerror}", where=str(path), hint=hint) from None


def read_report(root: Path) -> Verification | None:
    """Return the report of an earlier verification of this very artifact, if there is one."""
    try:
        document = json.loads((root / REPORT).read_bytes())
        checks = tuple(Check(**check) for check in document["checks"])
        left_out = tuple(LeftOut(**each) for each in document.get("left_out", ()))
        report = Verification(checks, document["acceptance"], document["manifest"], left_out)
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return report if report.manifest_sha256 == manifest_sha256(root) else None


def manifest_sha256(root: Path) -> str:
    """Return the SHA-256 of an artifact's manifest, which tells it from every other."""
    return hashlib.sha256((root / MANIFEST).read_bytes()).hexdigest()
