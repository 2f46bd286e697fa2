# SPDX-License-Identifier: Apache-2.0
"""`verify` and `ensure_gates`: a valid artifact passes, and each kind of damage is found and reported."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests._support.manifests import read_manifest, write_manifest
from tests._support.tiny import make_llama
from tests.conftest import Run
from trtspec.bench import verify as verifying
from trtspec.bench.documents import save_verification
from trtspec.bench.gates import VerificationCheck, VerificationReport
from trtspec.bench.verify import ensure_gates
from trtspec.checkpoints.safetensors import read_header
from trtspec.core.errors import DigestMismatch, GateNotMet, VerificationFailed
from trtspec.core.hashing import file_segments
from trtspec.store.artifact import load_manifest, manifest_sha256

pytestmark = pytest.mark.integration
TOKENS = ("--max-tokens", 16)
DIFFERENCE = re.compile(
    r"2 of 3 texts .*; 1 differences: prompt (\d) token (\d+): "
    r"the source prefers (\d+) \(logit (-?[\d.]+)\) to (\d+) \((-?[\d.]+)\)"
)


def edit_tensor(path: Path, name: str, change: Callable[[Any], None]) -> None:
    """Edit a two-byte tensor in place with `change`, which receives its bits as integers."""
    tensor = read_header(path)[name]
    content = bytearray(path.read_bytes())
    view = np.frombuffer(content, np.uint16, tensor.nbytes // 2, tensor.offset).reshape(tensor.shape)
    change(view)
    path.unlink()  # it may be hard-linked to the store, which must not change
    path.write_bytes(content)


def record_again(artifact: Path, changed: str) -> None:
    """Update the digest of a modified file in the manifest."""
    document = read_manifest(artifact)
    for record in document["files"]:
        if record["path"] == changed:
            record["segments"] = file_segments([artifact / changed])[0]
    write_manifest(artifact, document)


def tamper(artifact: Path, change: Callable[[Any], None], name: str = "lm_head.weight") -> None:
    weights = "checkpoints/target/rank0.safetensors"
    edit_tensor(artifact / weights, name, change)
    record_again(artifact, weights)


def checks_of(trtspec: Run, artifact: Path, code: int, *arguments: object) -> dict[str, dict[str, Any]]:
    done = trtspec("verify", artifact, *TOKENS, "--json", *arguments)
    assert done.code == code, done.err
    assert done.document["ok"] == (code == 0)
    assert json.loads((artifact / "reports" / "verify.json").read_text()) == done.document
    return {check["name"]: check for check in done.document["checks"]}


def test_valid_artifact_passes_all_checks(artifact: Path, trtspec: Run) -> None:
    checks = checks_of(trtspec, artifact, 0)
    files = len(load_manifest(artifact).files)
    assert {name: (check["ok"], check["value"], check["limit"]) for name, check in checks.items()} == {
        "files": (True, files, files),
        "parity": (True, 3, 3),
        "lossless": (True, 3, 3),
    }
    assert checks["parity"]["detail"] == "3 of 3 texts match greedy transformers output from the source model"
    assert "build/tiny: verified\n" in trtspec("verify", Path("build/tiny"), *TOKENS).out


def test_report_survives_the_next_build(recipe: Path, artifact: Path, trtspec: Run) -> None:
    checks_of(trtspec, artifact, 0)
    assert trtspec("build", recipe, "--json").document["status"] == "unchanged"
    assert (artifact / "reports" / "verify.json").is_file()


def test_artifact_without_speculation_passes_all_checks(recipe: Path, trtspec: Run) -> None:
    text = recipe.read_text()
    recipe.write_text(text[: text.index("speculation:")] + text[text.index("engine:") :])
    assert trtspec("build", recipe).code == 0
    artifact = recipe.parent / "build" / "tiny"
    assert not (artifact / "checkpoints" / "draft").exists()
    assert set(checks_of(trtspec, artifact, 0)) == {"files", "parity", "lossless"}


def test_changed_weight_fails_parity_at_the_differing_token(artifact: Path, trtspec: Run) -> None:
    answers = [
        trtspec("generate", artifact, "-p", json.loads(line)["prompt"], *TOKENS, "--json").document["token_ids"]
        for line in (artifact / "prompts" / "prompts.jsonl").read_text().splitlines()
    ]
    # a token that occurs in only one response, so that the others do not change
    token = next(token for token in answers[0] if not any(token in answer for answer in answers[1:]))

    def silence(rows: Any) -> None:
        rows[token] = 0

    tamper(artifact, silence)
    parity = checks_of(trtspec, artifact, 110)["parity"]
    assert (parity["ok"], parity["value"]) == (False, 2)
    found = DIFFERENCE.match(parity["detail"])
    assert found, parity["detail"]
    prompt, place, theirs, their_logit, ours, our_logit = found.groups()
    assert (int(prompt), int(place), int(theirs)) == (1, answers[0].index(token), token)
    assert int(ours) != token
    assert float(their_logit) > float(our_logit) + 1e-3


def test_tie_is_reported_without_failing_parity(recipe: Path, artifact: Path, trtspec: Run) -> None:
    """Two rows of the source's output layer are equal, so either token is correct."""
    said = trtspec("generate", artifact, "-p", "{", *TOKENS, "--json").document["token_ids"]
    low, high = 0, said[0]
    weights = recipe.parent / "target" / "model.safetensors"

    def equal(rows: Any) -> None:
        rows[low] = rows[high]

    edit_tensor(weights, "lm_head.weight", equal)
    checks = checks_of(trtspec, artifact, 0)  # the artifact still distinguishes the two and generates the second
    parity = checks["parity"]
    assert parity["value"] == 3
    tie = re.search(
        rf"numerical ties: .*prompt 2 token 0: the source prefers {low} \(logit (\S+)\) to {high} \((\S+)\)",
        parity["detail"],
    )
    assert tie, parity["detail"]
    assert tie[1] == tie[2]


def test_early_end_token_fails_parity(recipe: Path, artifact: Path, trtspec: Run) -> None:
    """The artifact ends a text where the source continues."""
    said = trtspec("generate", artifact, "-p", "{", *TOKENS, "--json").document["token_ids"]

    def ends(rows: Any) -> None:
        rows[[0, said[0]]] = rows[[said[0], 0]]

    tamper(artifact, ends)
    assert trtspec("generate", artifact, "-p", "{", "--json").document["finish_reason"] == "end_id"
    parity = checks_of(trtspec, artifact, 110)["parity"]
    assert re.search(rf"prompt 2 token 0: the source prefers {said[0]} \(.*\) to 0 \(", parity["detail"])


def test_moved_source_needs_the_source_option(recipe: Path, artifact: Path, trtspec: Run) -> None:
    moved = recipe.parent / "moved"
    (recipe.parent / "target").rename(moved)
    failed = trtspec("verify", artifact, *TOKENS)
    assert (failed.code, failed.err) == (
        1,
        f"error: the source of the target cannot be read: no such directory: {recipe.parent / 'target'}\n"
        "hint: give its location with --source DIR\n",
    )
    checks_of(trtspec, artifact, 0, "--source", moved)


@pytest.mark.parametrize("what", ["nosuch", "build"])
def test_invalid_source_directory_is_rejected(what: str, artifact: Path, trtspec: Run) -> None:
    failed = trtspec("verify", artifact, *TOKENS, "--source", what)
    assert failed.code == 1
    assert failed.err.startswith(f"error: {what}/config.json: the source of the target cannot be read: ")


def test_source_of_another_shape_is_rejected(recipe: Path, artifact: Path, trtspec: Run) -> None:
    other = make_llama(recipe.parent / "other", vocab_size=64)
    failed = trtspec("verify", artifact, *TOKENS, "--source", other)
    assert (failed.code, failed.err) == (
        1,
        f"error: {other}: not the artifact's source: it has 64 vocabulary entries, the artifact has 262\n",
    )


@pytest.mark.parametrize(
    ("gate", "detail"),
    [
        ("min_acceptance=0.99", r"acceptance rate 0\.\d{3}, required: 0.99"),
        (
            "min_speedup=1000.0",
            r"\d+\.\d\d times as fast \(.*\), required: 1000.0; the interval of fewer than 6 prompts .*",
        ),
    ],
)
def test_missed_gate_fails_verify_and_deploy(gate: str, detail: str, recipe: Path, trtspec: Run) -> None:
    assert trtspec("build", recipe, "--set", f"gates.{gate}").code == 0
    artifact = recipe.parent / "build" / "tiny"
    name = gate.split("=", maxsplit=1)[0]
    checks = checks_of(trtspec, artifact, 112)
    assert [each for each, check in checks.items() if not check["ok"]] == [name]
    assert re.fullmatch(detail, checks[name]["detail"])
    refused = trtspec("deploy", artifact)
    assert refused.code == 112
    assert f"error: {name}: " in refused.err
    assert f"hint: choose another draft, change the limit in the recipe, or use --skip-gate {name}" in refused.err


def test_prompts_option_replaces_the_artifacts_prompts(recipe: Path, artifact: Path, trtspec: Run) -> None:
    (recipe.parent / "own.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    assert checks_of(trtspec, artifact, 0, "--prompts", "own.jsonl")["parity"]["limit"] == 2


def count_measurements(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    counted: list[int] = []
    measure = verifying.measure_engine

    def counting(artifact: Any, prompts: Any, *arguments: Any, **options: Any) -> Any:
        counted.append(len(prompts))
        return measure(artifact, prompts, *arguments, **options)

    monkeypatch.setattr(verifying, "measure_engine", counting)
    return counted


def forged(artifact: Path, **changes: Any) -> None:
    """Write a passing report into an artifact."""
    digest = hashlib.sha256((artifact / "manifest.json").read_bytes()).hexdigest()
    report = {"checks": [], "acceptance": "exact", "manifest": digest} | changes
    (artifact / "reports").mkdir(exist_ok=True)
    (artifact / "reports" / "verify.json").write_text(json.dumps(report))


def test_deploy_ignores_a_report_shipped_with_the_artifact(
    recipe: Path, artifact: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = count_measurements(monkeypatch)
    shutil.rmtree(recipe.parent / "target")  # needs no source
    ensure_gates(artifact)
    forged(artifact)
    ensure_gates(artifact)
    assert counted == [3, 3]
    failed = {"name": "lossless", "ok": False, "value": 0, "limit": 1, "detail": "not so"}
    forged(artifact, checks=[failed])
    ensure_gates(artifact)  # it cannot block a deployment either
    assert counted == [3, 3, 3]


def test_deploy_uses_a_report_with_a_trusted_digest(artifact: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    counted = count_measurements(monkeypatch)
    forged(artifact)
    digest = hashlib.sha256((artifact / "reports" / "verify.json").read_bytes()).hexdigest()
    ensure_gates(artifact, trusted=digest)
    assert counted == []
    with pytest.raises(DigestMismatch, match="digest of the report is sha256:"):
        ensure_gates(artifact, trusted="0" * 64)
    forged(artifact, manifest="0" * 64)
    digest = hashlib.sha256((artifact / "reports" / "verify.json").read_bytes()).hexdigest()
    with pytest.raises(DigestMismatch, match="the report is not about this artifact"):
        ensure_gates(artifact, trusted=digest)


def test_deploy_uses_the_users_verification_on_this_machine(
    artifact: Path, trtspec: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks_of(trtspec, artifact, 0)
    counted = count_measurements(monkeypatch)
    shutil.rmtree(artifact / "reports")
    ensure_gates(artifact)
    assert counted == []
    monkeypatch.setattr("trtspec.bench.documents.this_machine", lambda: {"cpu": "another", "gpus": []})
    ensure_gates(artifact)
    assert counted == [3]  # measurements of another machine are ignored


def test_deploy_rejects_an_artifact_with_a_saved_failure(artifact: Path) -> None:
    for name, error in (("parity", VerificationFailed), ("min_acceptance", GateNotMet)):
        failed = VerificationCheck(name, False, 0, 1, "not so")
        save_verification(VerificationReport((failed,), "exact", manifest_sha256(artifact)))
        with pytest.raises(error, match=f"^{name}: not so(\n|$)"):
            ensure_gates(artifact)


def test_deploy_rejects_damaged_files_despite_a_passing_report(artifact: Path, trtspec: Run) -> None:
    checks_of(trtspec, artifact, 0)
    weights = artifact / "checkpoints" / "draft" / "rank0.safetensors"
    content = weights.read_bytes()
    weights.unlink()
    weights.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(DigestMismatch, match=r"checkpoints/draft/rank0\.safetensors: bytes 0 to [0-9,]* differ"):
        ensure_gates(artifact)
