# SPDX-License-Identifier: Apache-2.0
"""Rollouts of the soak test without a server: artifacts, timing of faults, and checks of the outcome."""

from __future__ import annotations

import random
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.soak import artifacts, faults
from benchmarks.soak.asking import Ask, Heard, TritonEntry
from benchmarks.soak.faults import DELAYS, PHASES, STAGING, Fault, Scene, keep_of_disk, small_disk, strike
from benchmarks.soak.load import Known, Record, Turn
from benchmarks.soak.parts import Report
from benchmarks.soak.rollouts import KINDS, Rolled, phases_of, tell
from tests.serving.triton.artifact import make_artifact
from trtspec.backends.code_policy import disallowed_code
from trtspec.core.hashing import file_sha256
from trtspec.deployment.journal import DeploymentJournal
from trtspec.deployment.journal import DeploymentRecord as Deployed
from trtspec.deployment.rollout.state import RolloutRecord, write_rollout
from trtspec.serving.gateway.command import same_text
from trtspec.store.artifact import load_manifest, verify_files

DEPLOYED = Deployed("n", "live", "/artifact", 1, 2, 8000, 8001, 8002, "shm", True, revision=1)
FULL = "no space left on /state/deployments/quickstart"


@pytest.fixture(scope="module")
def artifact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("soak") / "tiny"
    make_artifact(root)
    manifest = load_manifest(root).model_copy(update={"target_key": "0" * 64})
    (root / "manifest.json").write_bytes(manifest.render())
    return root


def digests(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): file_sha256(path) for path in sorted(root.rglob("*")) if path.is_file()}


def test_lossy_artifact_is_valid_with_changed_target_weights(artifact: Path) -> None:
    before = digests(artifact)
    copy = artifacts.lossy(artifact)
    assert digests(artifact) == before, "the hard-linked copy must not change the original"
    manifest = load_manifest(copy)
    assert not verify_files(copy, manifest)
    assert same_text(manifest) == same_text(load_manifest(artifact)) != ""
    changed = {path for path, digest in digests(copy).items() if digest != before[path]}
    assert changed == {"manifest.json", "checkpoints/target/rank0.safetensors"}


def test_two_model_artifact_is_valid_and_has_only_our_code(artifact: Path) -> None:
    before = digests(artifact)
    copy = artifacts.of_two_models(artifact)
    manifest = load_manifest(copy)
    assert digests(artifact) == before
    assert not verify_files(copy, manifest)
    assert not disallowed_code(copy, manifest)
    models = {path.name for path in (copy / "model_repository").iterdir()}
    assert {"ensemble", "tensorrt_llm_bls", "tensorrt_llm", "tensorrt_llm_draft"} < models
    assert same_text(manifest) == same_text(load_manifest(artifact))


def test_corrupt_artifact_differs_from_its_manifest(artifact: Path) -> None:
    before = digests(artifact)
    copy = artifacts.corrupted(artifact, random.Random(1))
    assert digests(artifact) == before
    assert len(verify_files(copy, load_manifest(copy))) == 1


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setenv("TRTSPEC_STATE", str(tmp_path))
    monkeypatch.setattr(faults, "LOOKS_S", 0.001)
    monkeypatch.setattr(faults, "DELAYS", dict.fromkeys(DELAYS, 0.01))
    journal = DeploymentJournal("n")
    journal.root.mkdir(parents=True)
    journal.write(DEPLOYED)
    return Scene(journal, 1, random.Random(1))


def moves(scene: Scene, state: str, revision: int = 2) -> None:
    write_rollout(scene.journal, RolloutRecord(replace(DEPLOYED, revision=revision), state=state))


@pytest.mark.parametrize(
    ("state", "phase"),
    [
        ("staged", STAGING), ("starting", "loading"), ("loaded", "loading"), ("smoke", "shadow"), ("shadow", "shadow"),
        ("canary", "canary"), ("promoted", ""), ("rolled-back", ""),
    ],
)  # fmt: skip
def test_phase_follows_the_rollout_state(scene: Scene, state: str, phase: str) -> None:
    assert scene.phase() == STAGING
    moves(scene, "promoted", 1)
    assert scene.phase() == STAGING, "the phase belongs to the previous rollout"
    moves(scene, state)
    assert scene.phase() == phase


def test_fault_waits_for_its_phase_or_a_later_one(scene: Scene) -> None:
    moves(scene, "canary")
    assert scene.await_moment(Fault("shadow"))
    over = Fault("canary")
    over.over.set()
    assert not scene.await_moment(over), "the rollout has ended"


def test_fault_phases_depend_on_the_kind() -> None:
    assert {kind: phases_of(kind) for kind in ("slow", "full disk")} == {
        "slow": ["loading", "shadow", "canary"],
        "full disk": [*PHASES],
    }


@pytest.mark.parametrize("state", ["canary", "promoted"])
def test_promoted_server_is_not_struck(scene: Scene, state: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        moves(scene, "canary")
        fault = Fault("canary")
        monkeypatch.setattr(Scene, "victim", lambda *_: moves(scene, state) or process.pid)
        strike(signal.SIGKILL, "")(scene, fault)
        if state == "promoted":
            assert process.poll() is None
            process.kill()
        assert process.wait(20) == -signal.SIGKILL
        assert (fault.phase, fault.at is not None) == (("canary", True) if state == "canary" else ("", False))


def test_full_disk_fault_is_temporary_and_preserves_logs(scene: Scene, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(faults, "DISK", "1m")
    monkeypatch.setattr(faults, "FULL_S", (0.3, 0.3))
    disk = tmp_path / "disk"
    if not small_disk(disk):
        pytest.skip("requires permission to mount a tmpfs")
    try:
        (disk / "server.log").write_text("said")
        left: list[int] = []
        fault = Fault(STAGING)
        monkeypatch.setattr(fault.over, "wait", lambda seconds: left.append(shutil.disk_usage(disk).free))
        moves(scene, "staged")
        monkeypatch.setattr(Scene, "await_moment", lambda *_: True)
        faults.fill(replace(scene, disk=disk), fault)
        assert (left, fault.phase) == ([0], STAGING)
        assert shutil.disk_usage(disk).free > 0
    finally:
        keep_of_disk(disk, tmp_path / "kept")
    assert (tmp_path / "kept" / "server.log").read_text() == "said"
    assert not list(disk.iterdir())


def rolled(kind: str, code: int | None = 113, reason: str = "it died", problem: str = "") -> Rolled:
    return Rolled(kind, code, 4.0, 1.0, reason, "canary", 10.0, problem)


@pytest.mark.parametrize(
    ("kind", "codes"),
    [
        ("good", {0}), ("command killed", {0}), ("corrupt", {102}), ("lossy", {113}), ("dead draft", {113}),
        ("slow", {113}), ("full disk", {0}),
    ],
)  # fmt: skip
def test_rollout_kind_has_its_expected_exit_code(kind: str, codes: set[int]) -> None:
    every = (0, 1, 102, 113, None)
    assert {code for code in every if rolled(kind, code).as_expected} == codes
    assert not any(rolled(kind, code, problem="revisions [7] are left").as_expected for code in codes)


@pytest.mark.parametrize("code", [1, 113])
def test_full_disk_failure_is_expected_only_with_that_reason(code: int) -> None:
    assert rolled("full disk", code, FULL).as_expected
    assert not rolled("full disk", code, "something else").as_expected


def asked(begun: float, ended: float, **heard: object) -> Record:
    known = Known(TritonEntry(""), Ask("a", "p", 1), "x")
    return Record(Turn(known, True), Heard(**{"text": "x", **heard}), begun, ended)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("records", "every", "broken"),
    [
        ([asked(9, 12)], [rolled("slow"), rolled("lossy")], set()),
        ([asked(9, 12, problem="refused")], [rolled("slow")], {"no_request_failed"}),
        ([asked(9, 12, text="y")], [rolled("slow")], {"every_text_the_same"}),
        ([asked(9, 12, revisions=2)], [rolled("slow")], {"no_answer_of_two_revisions"}),
        ([asked(2, 3)], [rolled("slow")], {"in_midst_of_requests"}),
        ([asked(9, 12)], [rolled("slow")] * 5 + [replace(rolled("slow"), at=20.0)], set()),
        ([asked(9, 12)], [rolled("slow")] * 5 + [replace(rolled("slow"), at=20.0)] * 2, {"in_midst_of_requests"}),
        ([asked(9, 12)], [replace(rolled("slow"), back_s=5.1)], {"rolled_back_in_time"}),
        ([asked(9, 12)], [replace(rolled("slow"), at=None, back_s=None)], {"each_fault_came"}),
        ([asked(9, 12)], [rolled("lossy", problem="clients were sent to it")], {"each_ends_as_it_should"}),
        ([asked(9, 12)], [rolled("slow", None)], {"none_stuck", "each_ends_as_it_should"}),
    ],
)
def test_violated_rollout_checks_are_reported(records: list[Record], every: list[Rolled], broken: set[str]) -> None:
    report = Report()
    tell(report, every, records)
    assert {name for name, holds in report.checks.items() if not holds} == broken
    assert [*report.found["kinds"]] == [*KINDS]
    of_first = sum(each.kind == every[0].kind for each in every)
    assert report.found["kinds"][every[0].kind]["phases"] == {"canary": of_first}
