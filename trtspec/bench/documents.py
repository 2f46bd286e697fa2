# SPDX-License-Identifier: Apache-2.0
"""Storage and identification of measurement documents and verifications.

A document describes the measured machine and target. The newest document of each kind for an artifact is saved in the
state directory as documents/SHA256/KIND.json, under the SHA-256 of the artifact's manifest. Measurements before an
artifact exists are saved under the SHA-256 of its target. Saved documents are checksummed and have owner-only
permissions. They are ignored with a warning if they are damaged or other users can write to them. Other files are
untrusted and limited in size before parsing.

`verify` and `bench --gates` save a verification for a manifest and this machine as verified/SHA256.json, which `deploy`
and `readiness` read. The copy in the artifact, reports/verify.json, is for people and CI. It is untrusted, because
anyone who handled the artifact could have written it, unless the user states its SHA-256 (`trusted_report`).
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import platform
import stat
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from trtspec.bench.gates import SkippedCheck, VerificationCheck, VerificationReport
from trtspec.checkpoints.safe_json import parse_object
from trtspec.core.errors import DigestMismatch, TrtspecError, os_error_remedy
from trtspec.core.files import (
    UnreadableFile,
    describe_read_error,
    open_regular,
    private_directory,
    read_bounded,
    replace_file,
)
from trtspec.core.gpus import detect_gpus
from trtspec.core.paths import state_dir
from trtspec.engine.simulated_acceptance import SIMULATED
from trtspec.planning.documents import read_values
from trtspec.recipe.resolve import ResolvedRecipe
from trtspec.store.artifact import Manifest, manifest_sha256
from trtspec.store.artifact_paths import REPORTS
from trtspec.store.digest import compute_digest, dump_checksummed_text, has_valid_checksum

log = logging.getLogger(__name__)

MAX_BYTES, MAX_VALUES = 64 << 20, 2_000_000
REPORT_MAX_BYTES, REPORT_MAX_VALUES = 4 << 20, 100_000
VERIFIED = "trtspec.verified/1"
REPORT = f"{REPORTS}/verify.json"
# The kind of a document without `kind` is determined by the first of these keys that it contains.
KEYS = {"methods": "profile", "speculative": "bench", "checks": "verify", "steps": "build"}
KINDS = ("baseline", "bench", "build", "load", "profile", "tune", "verify")


def describe_machine() -> dict[str, Any]:
    """Return the processor, the number of cores available to this process, the GPUs and the operating system."""
    return {
        "cpu": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "gpus": [gpu.name for gpu in detect_gpus()],
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
    }


def this_machine() -> dict[str, Any]:
    """Return the hardware that determines speed, the processor and GPU models, without running a program."""
    gpus: list[str] = []
    for path in sorted(Path("/proc/driver/nvidia/gpus").glob("*/information")):
        gpus += _proc_values(path, "Model:")
    return {"cpu": _processor(), "gpus": gpus}


def _processor() -> str:
    """Return the processor's name from /proc/cpuinfo, or the platform's name; Linux on Arm does not report one."""
    return next(iter(_proc_values(Path("/proc/cpuinfo"), "model name")), platform.processor() or "unknown")


def _proc_values(path: Path, name: str) -> list[str]:
    """Return the text after the colon of each line that starts with `name`; empty if the file is unreadable."""
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    return [line.partition(":")[2].strip() for line in lines if line.startswith(name)]


def write_record(path: Path, values: Mapping[str, Any]) -> None:
    """Write a checksummed record with mode 0600; raises OSError."""
    path.parent.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    private_directory(path.parent)
    replace_file(path, dump_checksummed_text(dict(values)), mode=0o600, follow=False)


def read_record(path: Path) -> bytes | None:
    """Return the bytes of a record, or None if it is absent, damaged or writable by other users."""
    try:
        directory = path.parent.lstat()
        is_safe = stat.S_ISDIR(directory.st_mode) and _is_only_ours(directory)
        if is_safe:
            with open_regular(path, follow=False) as file:
                is_safe = _is_only_ours(os.fstat(file.fileno()))
        if not is_safe:
            raise OSError(None, "other users can write to it")
        data = read_bounded(path, MAX_BYTES, follow=False)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        log.warning("%s is ignored: %s", path, describe_read_error(error) if error.errno else error.strerror)
        return None
    if not has_valid_checksum(data):
        log.warning("%s is ignored: it is damaged or was written by an earlier trtspec", path)
        return None
    return data


def _is_only_ours(status: os.stat_result) -> bool:
    """Return True if this user owns a file or directory and no other user can write to it."""
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


@dataclass(frozen=True)
class SavedDocument:
    """A document of a known kind; `time` is its recorded time, or else the modification time of its file."""

    path: Path
    kind: str
    sha256: str
    time: datetime
    values: Mapping[str, Any]

    def text(self, *keys: str) -> str:
        """Return the string at the nested `keys`, or ""."""
        return nested_text(self.values, *keys)


def nested_text(values: Mapping[str, Any], *keys: str) -> str:
    """Return the string at the nested `keys` of a document, or ""."""
    found: Any = values
    for key in keys:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, str) else ""


def save_document(root: Path, kind: str, document: Mapping[str, Any]) -> None:
    """Save a document of an artifact in the state directory; errors are ignored."""
    save_target_document(manifest_sha256(root), kind, document)


def save_target_document(sha256: str, name: str, document: Mapping[str, Any]) -> None:
    """Save a document of a target under `name` in the state directory; errors are ignored."""
    with suppress(OSError):
        write_record(_documents_dir(sha256) / f"{name}.json", document)


def list_documents(root: Path, target: str) -> list[Path]:
    """Return the files of all valid saved documents of an artifact and of the target with SHA-256 `target`."""
    folders = [_documents_dir(sha256) for sha256 in (manifest_sha256(root), target)]
    return [path for folder in folders for path in sorted(folder.glob("*.json")) if read_record(path) is not None]


def _documents_dir(sha256: str) -> Path:
    return state_dir() / "documents" / sha256


def read_document(path: Path) -> SavedDocument:
    """Read a document; raises TrtspecError if the file is invalid, its kind unknown, or its acceptance simulated."""
    hint = f"create one with --json of {', '.join(KINDS)}"
    values, data = read_values(path, hint, MAX_BYTES, MAX_VALUES)
    check_measured(values, path)
    by_key = next((KEYS[key] for key in KEYS if key in values), "")
    kind = nested_text(values, "kind") if "kind" in values else by_key
    if kind not in KINDS:
        raise TrtspecError("not a document of a measuring command", where=str(path), hint=hint)
    time = _time(values.get("time", values.get("ended_at")), path)
    return SavedDocument(path, kind, hashlib.sha256(data).hexdigest(), time, values)


def check_measured(values: Mapping[str, Any], path: Path) -> None:
    """Raise TrtspecError if the values of a document were measured with simulated acceptance."""
    if values.get(SIMULATED):
        message = "measured with simulated acceptance, which says nothing about the artifact's own drafts"
        raise TrtspecError(message, where=str(path), hint="measure without --simulate-acceptance")


def _time(recorded: Any, path: Path) -> datetime:
    """Return a document's recorded time in UTC, or else the modification time of its file."""
    with suppress(TypeError, ValueError):
        time = datetime.fromisoformat(recorded)
        if time.tzinfo:
            return time.astimezone(timezone.utc)
    return datetime.fromtimestamp(path.stat().st_mtime, timezone.utc)


def prompts_sha256(texts: Iterable[str]) -> str:
    """Return the SHA-256 of prompts as sent to the engine, in order."""
    return hashlib.sha256(json.dumps(list(texts)).encode()).hexdigest()


def describe_target(manifest: Manifest) -> dict[str, str]:
    """Return the model name and the SHA-256 of an artifact's target, as recorded in documents."""
    return {"model": manifest.recipe.target.model, "sha256": target_sha256(manifest)}


def target_sha256(manifest: Manifest) -> str:
    """Return the SHA-256 that identifies an artifact's target, independently of its drafter."""
    return planned_target_sha256(
        manifest.recipe, manifest.target_key, ((each.name, each.key) for each in manifest.steps)
    )


def planned_target_sha256(recipe: ResolvedRecipe, target_key: str, steps: Iterable[tuple[str, str]]) -> str:
    """Return the target SHA-256 of an artifact that is not built yet; `steps` are (name, key) pairs.

    If the target is not converted, the digest covers its recipe section, the steps that copy it, and the engine.
    """
    if target_key:
        return target_key
    keys, engine = [key for name, key in steps if name.endswith("target")], recipe.engine
    return compute_digest(
        "trtspec.target/1", [recipe.target.model_dump(mode="json"), keys, [engine.backend, engine.version]]
    )


def mismatch_reason(document: Mapping[str, Any], manifest: Manifest, manifest_sha256: str) -> str:
    """Return the reason why a document does not belong to an artifact, or "" if no recorded value contradicts it."""
    if target := nested_text(document, "target", "sha256"):
        return _method_mismatch(document, manifest) if target == target_sha256(manifest) else "of another target"
    if told := recorded_manifest(document):
        return "" if told == manifest_sha256 else "of another artifact"
    name = nested_text(document, "name")
    return "" if name in ("", manifest.recipe.name) else f"of another recipe, {name}"


def recorded_manifest(document: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the manifest that a document records, or ""."""
    told = nested_text(document, "manifest") or nested_text(document, "deployment", "manifest")
    return told.removeprefix("sha256:")  # prefix written by `build --json` and deployments


def _method_mismatch(document: Mapping[str, Any], manifest: Manifest) -> str:
    """Return "" if a document of the right target covers the target alone or the artifact's method, else the reason."""
    profiled = document.get("methods")
    parts = [document, *(profiled if isinstance(profiled, list) else ())]
    methods = {nested_text(part, "method") for part in parts if isinstance(part, Mapping)} - {""}
    own = manifest.recipe.speculation.method
    return "" if not methods or own in methods else f"of {', '.join(sorted(methods))}, but this artifact uses {own}"


@dataclass(frozen=True)
class _Document:
    """The fields of `VerificationReport.as_dict` that are parsed."""

    acceptance: str
    checks: tuple[VerificationCheck, ...]
    manifest: str
    left_out: tuple[SkippedCheck, ...] = ()


def store_verification(
    root: Path, verification: VerificationReport, on_unwritten: Callable[[TrtspecError], None], out: Path | None = None
) -> None:
    """Save a verification in the state directory, and write it as a report into the artifact or to `out`.

    Errors are passed to `on_unwritten`; only an error for `out` is raised.
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
    """Save a verification for later commands of this user on this machine; raises TrtspecError."""
    path = _record_path(verification.manifest_sha256)
    try:
        write_record(path, {"schema": VERIFIED, "machine": this_machine(), **verification.as_dict()})
    except OSError as error:
        hint = "free space or fix permissions there, or set TRTSPEC_STATE to another directory"
        message = f"the verification cannot be saved: {error.strerror}"
        raise TrtspecError(message, where=str(path), hint=os_error_remedy(error) or hint) from None


def write_report(path: Path, verification: VerificationReport, *, follow: bool = True) -> None:
    """Atomically write a verification as a JSON report; raises TrtspecError if it cannot be written.

    With `follow=False`, as for reports in an artifact, the directory must not be a symbolic link.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        data = json.dumps(verification.as_dict(), indent=1).encode() + b"\n"
        replace_file(path, data, follow=follow)
    except OSError as error:
        hint = "if the artifact is read-only, use --report FILE"
        raise TrtspecError(f"the report cannot be written: {error.strerror}", where=str(path), hint=hint) from None


def read_verification(root: Path) -> VerificationReport | None:
    """Return this user's saved verification of the artifact on this machine, or None."""
    return load_verification(root)[0]


def load_verification(root: Path) -> tuple[VerificationReport | None, datetime | None]:
    """Return the result of `read_verification` and the time at which it was saved."""
    sha256 = manifest_sha256(root)
    path = _record_path(sha256)
    if (data := read_record(path)) is None:
        return None, None
    try:
        document = parse_object(data, REPORT_MAX_VALUES)
    except ValueError:
        return None, None
    if document.get("schema") != VERIFIED or document.get("machine") != this_machine():
        return None, None
    found = _verification(data, sha256)
    return found, datetime.fromtimestamp(path.stat().st_mtime, timezone.utc) if found else None


def read_untrusted_report(root: Path) -> VerificationReport | None:
    """Return the report in the artifact if it matches the manifest, or None; anyone may have written it."""
    try:
        return _verification(_copy(root), manifest_sha256(root))
    except OSError:
        return None


def trusted_report(root: Path, sha256: str) -> VerificationReport:
    """Return the report in the artifact; raises DigestMismatch unless its SHA-256 is `sha256`."""
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
    return read_bounded(root / REPORT, REPORT_MAX_BYTES, follow=False)


def _record_path(sha256: str) -> Path:
    return state_dir() / "verified" / f"{sha256}.json"


def _verification(data: bytes, manifest: str) -> VerificationReport | None:
    """Parse a verification; return None if it is malformed or about another manifest."""
    from pydantic import TypeAdapter, ValidationError

    try:
        parse_object(data, REPORT_MAX_VALUES)  # enforces size limits, and is stricter than pydantic
        found = TypeAdapter(_Document).validate_json(data, strict=True)
    except (ValueError, ValidationError):
        return None
    if found.manifest != manifest:
        return None
    return VerificationReport(found.checks, found.acceptance, found.manifest, found.left_out)
