# SPDX-License-Identifier: Apache-2.0
"""Artifacts and saved results that were tampered with are not trusted."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from tests._support.manifests import read_manifest, write_manifest
from tests._support.mutations import flipped, mutated
from tests.conftest import Run
from trtspec.bench.documents import (
    list_documents,
    read_document,
    read_record,
    read_untrusted_report,
    read_verification,
    save_document,
    save_verification,
    write_report,
)
from trtspec.bench.gates import VerificationCheck, VerificationReport
from trtspec.bench.load.comparison import read_saved
from trtspec.core.errors import TrtspecError
from trtspec.deployment.journal import DeploymentJournal, DeploymentRecord
from trtspec.deployment.rollout.state import FILE, RolloutRecord, read_rollout, save_rollout
from trtspec.planning.compare import load_document
from trtspec.report.evidence import gather
from trtspec.store.artifact import load_manifest, manifest_sha256

EXAMPLES = int(os.environ.get("TRTSPEC_FUZZ_EXAMPLES", "600"))


def verified(artifact: Path) -> None:
    checks = [VerificationCheck("lossless", True, 3, 3, "3 of 3 texts are the same", "lossless", "process")]
    checks.append(VerificationCheck("min_speedup", True, 1.25, 1.2e-5, "fast enough", "min_speedup", "process"))
    save_verification(VerificationReport(tuple(checks), "exact", manifest_sha256(artifact)))


@pytest.mark.slow
def test_manifest_with_a_flipped_bit_is_rejected(artifact: Path) -> None:
    path, dice = artifact / "manifest.json", random.Random(41)
    data = path.read_bytes()
    path.unlink()
    for _ in range(EXAMPLES):
        path.write_bytes(flipped(data, dice))
        with pytest.raises(TrtspecError):
            load_manifest(artifact)


@pytest.mark.slow
def test_record_with_a_flipped_bit_is_rejected(artifact: Path, workplace: Path) -> None:
    verified(artifact)
    save_document(artifact, "bench", {"speculative": {"rate": 1e-05}, "name": "tiny"})
    dice = random.Random(41)
    assert read_verification(artifact)
    (kept,) = list_documents(artifact, "0" * 64)
    for path in (*(workplace / "state" / "verified").glob("*.json"), kept):
        data = path.read_bytes()
        for _ in range(EXAMPLES // 2):
            path.write_bytes(flipped(data, dice))
            assert read_record(path) is None
    assert read_verification(artifact) is None
    assert not list_documents(artifact, "0" * 64)


@pytest.mark.slow
def test_records_are_private_and_ignored_if_other_users_can_write(
    artifact: Path, workplace: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    verified(artifact)
    (path,) = (workplace / "state" / "verified").glob("*.json")
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    path.chmod(0o622)
    assert read_verification(artifact) is None
    path.chmod(0o600)
    path.parent.chmod(0o777)
    assert read_verification(artifact) is None
    assert "is ignored: other users can write to it" in caplog.text
    path.parent.chmod(0o700)
    assert read_verification(artifact)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert read_verification(artifact) is None


# Variants of a tampered `reports/verify.json`; each function creates one.
def _fifo(path: Path, victim: Path) -> None:
    os.mkfifo(path)


def _zero(path: Path, victim: Path) -> None:
    path.symlink_to("/dev/zero")


def _link(path: Path, victim: Path) -> None:
    path.symlink_to(victim)


def _directory(path: Path, victim: Path) -> None:
    path.mkdir()


def _sparse(path: Path, victim: Path) -> None:
    path.touch()
    os.truncate(path, 1 << 40)


@pytest.mark.slow
@pytest.mark.parametrize("make", [_fifo, _zero, _link, _directory, _sparse])
def test_special_file_as_report_does_not_crash_any_command(
    artifact: Path, trtspec: Run, make: Callable[[Path, Path], None], workplace: Path
) -> None:
    victim = workplace / "victim"
    victim.write_text("theirs")
    reports = artifact / "reports"
    reports.mkdir()
    make(reports / "verify.json", victim)
    for arguments in (
        ("readiness", artifact),
        ("report", artifact, "--format", "junit"),
        ("compare", artifact, artifact),
    ):
        ended = trtspec(*arguments)
        assert (ended.code, "Traceback" in ended.err) == (0, False), arguments
    for document in ("--results", reports / "verify.json"), ("--results", workplace):
        assert trtspec("readiness", artifact, *document).code == 1
        assert trtspec("report", artifact, *document).code == 1
    assert trtspec("verify", artifact, "--max-tokens", 4).code == 0
    assert victim.read_text() == "theirs"


@pytest.mark.slow
def test_verify_does_not_write_through_a_symlinked_directory(artifact: Path, trtspec: Run, workplace: Path) -> None:
    (workplace / "theirs").mkdir()
    (artifact / "reports").symlink_to(workplace / "theirs")
    ended = trtspec("verify", artifact, "--max-tokens", 4)
    assert ended.code == 110  # a link is a file that the manifest does not list
    assert "the report cannot be written" in ended.err
    assert not list((workplace / "theirs").iterdir())


@pytest.mark.slow
def test_manifest_with_an_unexpected_digest_is_rejected(recipe: Path, artifact: Path, trtspec: Run) -> None:
    digest = f"sha256:{manifest_sha256(artifact)}"
    built = trtspec("build", recipe, "--json").document
    assert built["manifest"] == digest
    assert digest in trtspec("build", recipe).out
    assert trtspec("verify", artifact, "--max-tokens", 4, "--manifest", digest).code == 0
    other = f"sha256:{'0' * 64}"
    for command in (
        ("verify", artifact, "--manifest", other),
        ("deploy", artifact, "--manifest", other),
        ("deploy", artifact, "--target", "docker", "--render", "out", "--manifest", other),
    ):
        refused = trtspec(*command)
        assert (refused.code, f"its manifest is {digest}, expected {other}" in refused.err) == (102, True), command
    assert trtspec("deploy", artifact, "--manifest", "sha256:12").code == 1
    assert trtspec("deploy", artifact, "--trust-report", other).code == 102
    document = read_manifest(artifact)
    document["recipe"]["gates"]["min_speedup"] = 0.1
    write_manifest(artifact, document)  # an attacker can recompute the checksum; only the digest reveals the change
    assert trtspec("verify", artifact, "--manifest", digest).code == 102


@pytest.mark.slow
@pytest.mark.parametrize("target", ["docker", "kubernetes"])
def test_rendered_files_contain_the_manifest_digest(artifact: Path, trtspec: Run, target: str) -> None:
    image = f"registry.example/tiny@sha256:{'a' * 64}"
    more = ("--target-option", "artifact=pvc:models/tiny") if target == "kubernetes" else ()
    rendered = trtspec("deploy", artifact, "--target", target, "--image", image, "--render", "out", *more)
    assert rendered.code == 0, rendered.err
    texts = [path.read_text() for path in Path("out").rglob("*.yaml")]
    assert any(f"--manifest=sha256:{manifest_sha256(artifact)}" in text for text in texts)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["\ud800", "n" * 3000, "a\0b", "/etc/passwd", "../x"])
def test_manifest_with_an_invalid_file_name_is_rejected_without_traceback(
    artifact: Path, trtspec: Run, name: str
) -> None:
    document = read_manifest(artifact)
    document["files"][0]["path"] = name
    write_manifest(artifact, document)
    refused = trtspec("verify", artifact)
    assert (refused.code, "Traceback" in refused.err) == (1, False)
    assert str(artifact / "manifest.json") in refused.err


@pytest.mark.slow
@pytest.mark.parametrize("version", [1, 2])
def test_artifact_of_an_earlier_version_is_rejected_and_can_be_rebuilt(
    recipe: Path, artifact: Path, trtspec: Run, version: int
) -> None:
    document = read_manifest(artifact) | {"schema": f"trtspec.manifest/{version}"}
    (artifact / "manifest.json").unlink()
    (artifact / "manifest.json").write_text(json.dumps(document))
    refused = trtspec("verify", artifact)
    assert refused.code == 1
    assert "an earlier version of trtspec built it, with other digests of its files; build it again" in refused.err
    assert trtspec("build", recipe).code == 0
    assert load_manifest(artifact)


def _only_in_words(read: Callable[[], object], data: bytes) -> None:
    try:
        read()
    except TrtspecError as error:
        str(error).encode()
    except Exception as error:
        pytest.fail(f"{type(error).__name__} for {data[:400]!r}")


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["manifest", "report", "profile", "bench", "load", "compare"])
def test_mutated_documents_cause_only_error_messages(artifact: Path, workplace: Path, kind: str) -> None:
    dice, path = random.Random(f"41 {kind}"), workplace / "document.json"
    common = {"format_version": 1, "name": "tiny", "time": "2026-01-01T00:00:00+00:00", "target": {"sha256": "0" * 64}}
    arm = {"tokens_per_s": [1.0, 2.0], "median_tokens_per_s": 1.5, "acceptance_rate": 0.5, "mean_accepted_len": 2.0}
    documents: dict[str, dict[str, Any]] = {
        "profile": {**common, "methods": [{"method": "ngram", "verdict": "x"}], "by_position": []},
        "bench": {**common, "acceptance": "exact", "prompts": 3, "max_tokens": 4, "baseline": arm, "speculative": arm,
                  "speedup": 1.5, "speedup_interval": [1.0, 2.0], "identical_texts": 3},
        "load": {**common, "kind": "load", "points": [{"load": {"concurrency": 1}, "requests": []}]},
    }  # fmt: skip
    if kind == "manifest":
        data = (artifact / "manifest.json").read_bytes()
        (artifact / "manifest.json").unlink()
    elif kind == "report":
        verified(artifact)
        check = VerificationCheck("lossless", True, 3, 3, "same")
        write_report(path, VerificationReport((check,), "exact", manifest_sha256(artifact)))
        data, path = path.read_bytes(), artifact / "reports" / "verify.json"
        path.parent.mkdir()
    else:
        data = json.dumps(documents.get(kind, documents["bench"])).encode()
    for _ in range(max(200, EXAMPLES // 4)):
        changed = mutated(data, dice)
        if kind == "manifest":
            (artifact / "manifest.json").write_bytes(changed)
            _only_in_words(lambda: load_manifest(artifact), changed)
            try:
                document = json.loads(changed)
            except ValueError:
                continue
            if isinstance(document, dict) and document.pop("digest", None):
                write_manifest(artifact, document)  # with a recomputed checksum, as an attacker would do
                _only_in_words(lambda: load_manifest(artifact), changed)
            continue
        path.write_bytes(changed)
        if kind == "report":
            _only_in_words(lambda: read_untrusted_report(artifact), changed)
        elif kind == "load":
            _only_in_words(lambda: read_saved(path), changed)
        elif kind == "compare":
            _only_in_words(lambda: load_document(path), changed)
        else:
            _only_in_words(lambda: read_document(path), changed)
            _only_in_words(lambda: gather(artifact, [path]), changed)


def test_mutated_state_causes_only_error_messages(trtspec: Run, workplace: Path) -> None:
    journal, dice = DeploymentJournal("tiny"), random.Random(41)
    journal.root.mkdir(parents=True)
    record = DeploymentRecord("tiny", "live", "build/tiny", 1, None, 1, 2, 3, "trtspec_test_", True)
    journal.write(record, "begun")
    save_rollout(journal, RolloutRecord(record, state="canary", share=5, shadow={"verdict": "well", "sent": 3}))
    assert journal.read()
    assert read_rollout(journal) == RolloutRecord(
        record, state="canary", share=5, shadow={"verdict": "well", "sent": 3}
    )
    files = {name: (journal.root / name).read_bytes() for name in ("state.json", FILE, "journal.jsonl")}
    for number in range(max(300, EXAMPLES)):
        name, data = dice.choice([*files.items()])
        changed = mutated(data.rstrip(b"\n"), dice) + b"\n" * (name == "journal.jsonl")
        (journal.root / name).write_bytes(changed)
        for read in (journal.read, journal.entries, lambda: read_rollout(journal)):
            _only_in_words(read, changed)
        if number % 20 == 0:
            for command in ("status", "history"):
                ended = trtspec(command, "tiny")
                assert (ended.code in (0, 1), "Traceback" in ended.err) == (True, False), (changed, ended.err)
            assert trtspec("ps").code == 0
        (journal.root / name).write_bytes(data)
    (journal.root / FILE).write_text("null")
    assert trtspec("status", "tiny").code in (0, 1)


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_file_system_without_locks_is_an_error_with_a_hint(
    recipe: Path, trtspec: Run, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", refuse)
    ended = trtspec("build", recipe)
    assert (ended.code, "Traceback" in ended.err) == (100, False)
    assert "the file system" in ended.err
    assert "use a local disk: TRTSPEC_CACHE" in ended.err


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE, errno.ENOMEM])
def test_exhausted_system_resource_is_named_in_the_error(
    recipe: Path, trtspec: Run, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("trtspec.core.files.replace_file", refuse)
    monkeypatch.setattr("trtspec.store.entry.replace_file", refuse)
    ended = trtspec("build", recipe)
    assert (ended.code, "Traceback" in ended.err) == (100, False)
    assert "hint: " in ended.err
    assert "too many open files" in ended.err or "not enough memory" in ended.err


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("can't start new thread"), ImportError("failed to map segment")]
)
def test_memory_exhaustion_is_not_reported_as_a_bug(
    recipe: Path, trtspec: Run, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise ValueError("words of a library") from error

    monkeypatch.setattr("trtspec.cli.app._exhausted", [])
    monkeypatch.setattr("trtspec.store.store._write_output", refuse)
    ended = trtspec("build", recipe, "--json")
    assert (ended.code, "Traceback" in ended.err) == (1, False)
    assert ended.document["error"]["exit_code"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("megabytes", [100, 150, 250])
def test_build_with_little_memory_ends_in_time_without_traceback(recipe: Path, megabytes: int) -> None:
    command = f"ulimit -v {megabytes * 1000}; exec {sys.executable} -m trtspec build {recipe}"
    ended = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode in (0, 1, 100), ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.slow
def test_short_writes_do_not_change_checkpoints(
    recipe: Path, trtspec: Run, monkeypatch: pytest.MonkeyPatch, workplace: Path
) -> None:
    assert trtspec("build", recipe, "--out", "whole").code == 0
    pwrite = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda file, data, offset: pwrite(file, memoryview(data)[:777], offset))
    monkeypatch.setenv("TRTSPEC_CACHE", str(workplace / "other-cache"))
    assert trtspec("build", recipe, "--out", "short").code == 0
    for path in ("checkpoints/target/rank0.safetensors", "manifest.json"):
        digests = {hashlib.sha256((Path(out) / path).read_bytes()).hexdigest() for out in ("whole", "short")}
        assert len(digests) == 1


@pytest.mark.slow
def test_artifact_with_a_forged_report_is_measured_before_deployment(
    artifact: Path, trtspec: Run, workplace: Path
) -> None:
    """Forged artifact: its gates fail, but the report in the artifact claims that they hold."""
    document = read_manifest(artifact)
    document["recipe"]["gates"]["min_acceptance"] = 0.999
    write_manifest(artifact, document)
    shutil.move(artifact, workplace / "elsewhere")
    (workplace / "elsewhere" / "reports").mkdir()
    check = VerificationCheck("min_acceptance", True, 1.0, 0.999, "all of them")
    found = VerificationReport((check,), "exact", manifest_sha256(workplace / "elsewhere"))
    write_report(workplace / "elsewhere" / "reports" / "verify.json", found)
    assert asdict(found)["checks"]
    ended = trtspec("deploy", workplace / "elsewhere")
    assert ended.code == 112, ended.err
    assert "acceptance rate 0." in ended.err
