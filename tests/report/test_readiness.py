# SPDX-License-Identifier: Apache-2.0
"""The readiness of a real artifact: each row in each state, and matching of documents."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Run
from tests.report.advisor.serving import serving
from trtspec.bench.documents import KINDS, save_verification, target_sha256, write_report
from trtspec.bench.gates import VerificationCheck, VerificationReport
from trtspec.core.processes import start_time
from trtspec.deployment.journal import DeploymentJournal, DeploymentRecord
from trtspec.recipe.resolve import ResolvedRecipe
from trtspec.report import readiness
from trtspec.report.monitoring.configuration import rules
from trtspec.report.readiness import DONE, ITEMS, MISSING, NOT_NEEDED, ReadinessInputs, ReadinessItem, gather
from trtspec.store.artifact import load_manifest, manifest_sha256
from trtspec.store.artifact_paths import MANIFEST

NAMES = (
    *("built", "verified", "gates", "limits", "parity", "defaults", "warm-up", "rollout", "baseline", "profile"),
    *("tuning", "load", "metrics", "alerts", "rollback"),
)


def rows(trtspec: Run, artifact: Path, *arguments: object) -> dict[str, dict[str, Any]]:
    found = trtspec("readiness", artifact, *arguments, "--json")
    assert found.code == 0, found.err
    return {row["name"]: row for row in found.document["rows"]}


def write(path: Path, document: dict[str, Any], age_s: float = 0) -> Path:
    path.write_text(json.dumps(document))
    time = path.stat().st_mtime - age_s
    os.utime(path, (time, time))
    return path


def changed(facts: ReadinessInputs, **settings: Any) -> ReadinessInputs:
    """Return the facts of an artifact with changed recipe values; keys have __ instead of dots."""
    recipe = facts.recipe.as_dict()
    for path, value in settings.items():
        *places, last = path.split("__")
        table = recipe
        for place in places:
            table = table[place]
        table[last] = value
    manifest = facts.manifest.model_copy(update={"recipe": ResolvedRecipe.from_dict(recipe)})
    return replace(facts, manifest=manifest)


@pytest.fixture
def facts(artifact: Path) -> ReadinessInputs:
    return gather(artifact, (), None)


@pytest.mark.slow
def test_new_artifact_has_only_three_items_done(artifact: Path, trtspec: Run) -> None:
    found = rows(trtspec, artifact)
    assert tuple(found) == NAMES
    states = {name: row["state"] for name, row in found.items()}
    assert [name for name in NAMES if states[name] == DONE] == ["built", "defaults", "rollout"]
    assert states["parity"] == NOT_NEEDED
    assert all(row["evidence"] for row in found.values())
    assert all(bool(row["command"]) == (row["state"] == MISSING) for row in found.values())
    assert manifest_sha256(artifact)[:12] in found["built"]["evidence"]


@pytest.mark.slow
def test_exit_code_reflects_missing_items_only_with_strict(artifact: Path, trtspec: Run) -> None:
    shown = trtspec("readiness", artifact)
    assert shown.code == 0
    assert shown.out.endswith(f"{artifact}: 11 items missing\n")
    assert f"verified: trtspec verify {artifact}\n" in shown.out
    assert trtspec("readiness", artifact, "--strict").code == 112


@pytest.mark.slow
def test_verification_on_this_machine_is_evidence(artifact: Path, trtspec: Run) -> None:
    assert trtspec("verify", artifact, "--max-tokens", 4).code == 0
    found = rows(trtspec, artifact)
    assert (found["verified"]["state"], found["gates"]["state"]) == (DONE, DONE)
    check = VerificationCheck("parity", False, 0, 1, "not so")
    save_verification(VerificationReport((check,), "exact", manifest_sha256(artifact)))
    assert "failed: parity" in rows(trtspec, artifact)["verified"]["evidence"]


@pytest.mark.slow
def test_report_shipped_with_the_artifact_is_not_evidence(artifact: Path, trtspec: Run) -> None:
    assert rows(trtspec, artifact)["verified"]["evidence"] == "not verified on this machine"
    (artifact / "reports").mkdir()
    check = VerificationCheck("lossless", True, 1, 1, "the same", "lossless", "process")
    found = VerificationReport((check,), "exact", manifest_sha256(artifact))
    write_report(artifact / "reports" / "verify.json", found)
    row = rows(trtspec, artifact)
    assert (row["verified"]["state"], row["gates"]["state"]) == (MISSING, MISSING)
    assert row["verified"]["evidence"] == "measured elsewhere, not verified here"


@pytest.mark.slow
def test_saved_baseline_is_found_and_counts_for_its_target(artifact: Path, trtspec: Run) -> None:
    out = artifact.parent / "baseline.json"
    assert trtspec("baseline", artifact, "--max-tokens", 4, "--runs", 1, "-o", out).code == 0
    row = rows(trtspec, artifact)["baseline"]
    assert row["state"] == DONE
    assert row["documents"][0]["kind"] == "baseline"
    document = json.loads(out.read_text())
    assert document["manifest"] in row["documents"][0]["path"]
    other = {**document, "target": {**document["target"], "sha256": "0" * 64}, "time": "2099-01-01T00:00:00+00:00"}
    path = write(artifact.parent / "other.json", other)
    assert rows(trtspec, artifact, "--results", path)["baseline"]["state"] == DONE  # the matching one comes first
    (artifact.parents[1] / "state" / "documents" / document["manifest"] / "baseline.json").unlink()
    row = rows(trtspec, artifact, "--results", path)["baseline"]
    assert (row["state"], row["evidence"].rpartition(": ")[2]) == (MISSING, "of another target")
    asked = {**document, "prompts": {"count": 1, "sha256": "0" * 64}}
    row = rows(trtspec, artifact, "--results", write(artifact.parent / "asked.json", asked))["baseline"]
    assert row["state"] == DONE
    assert "with prompts other than the artifact's" in row["evidence"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("document", "age_s", "against"),
    [
        ({"name": "tiny"}, -5, ""),
        ({"name": "tiny"}, 1000, "older than the artifact"),
        ({"name": "huge"}, -5, "of another recipe, huge"),
        ({"manifest": "0" * 64}, -5, "of another artifact"),
        ({"time": "2001-01-01T00:00:00+00:00"}, -5, "older than the artifact"),
        ({"time": "2099-01-01T00:00:00+00:00"}, 1000, ""),
        ({"ended_at": "2099-01-01T00:00:00+00:00"}, 1000, ""),
        ({"time": "yesterday"}, 1000, "older than the artifact"),
    ],
)
def test_document_counts_by_recipe_manifest_and_time(
    artifact: Path, trtspec: Run, document: dict[str, Any], age_s: float, against: str
) -> None:
    path = write(artifact.parent / "p.json", {"format_version": 1, "methods": [], **document}, age_s)
    row = rows(trtspec, artifact, "--results", path)["profile"]
    assert row["state"] == (MISSING if against else DONE)
    assert row["evidence"].endswith(against)
    assert row["documents"][0]["path"] == str(path)


@pytest.mark.slow
def test_document_of_this_manifest_counts_at_any_age(artifact: Path, trtspec: Run) -> None:
    document = {"kind": "tune", "manifest": manifest_sha256(artifact)}
    path = write(artifact.parent / "t.json", document, 10_000)
    assert rows(trtspec, artifact, "--results", path)["tuning"]["state"] == DONE


@pytest.mark.slow
def test_documents_measured_before_the_build_are_found_by_the_target(recipe: Path, trtspec: Run) -> None:
    few = ("--num-prompts", 2, "--max-tokens", 8, "--max-draft-len", 2, "--set", "engine.max_batch_size=1")
    assert trtspec("profile", recipe, "--methods", "ngram,draft_target", *few).code == 0
    assert trtspec("tune", recipe, *few).code == 0
    built = {name: recipe.parent / name for name in ("same", "ngram", "other")}
    for name, changes in {
        "same": (),
        "ngram": ("speculation={method: ngram}",),
        "other": ("target.dtype=float16",),
    }.items():
        sets = [part for change in changes for part in ("--set", change)]
        assert trtspec("build", recipe, "--out", built[name], *sets).code == 0
    same, ngram, other = (rows(trtspec, built[name]) for name in built)
    assert [same[name]["state"] for name in ("profile", "tuning")] == [DONE, DONE], same
    assert [ngram[name]["state"] for name in ("profile", "tuning")] == [DONE, MISSING]
    assert (
        "of draft_target, but this artifact uses ngram" in ngram["tuning"]["evidence"]
        or not ngram["tuning"]["documents"]
    )
    assert [other[name]["state"] for name in ("profile", "tuning")] == [MISSING, MISSING]
    for row in (same["profile"], same["tuning"]):
        document = json.loads(Path(row["documents"][0]["path"]).read_text())
        assert document["target"]["sha256"] == target_sha256(load_manifest(built["same"]))
        assert document["prompt_set"]["sha256"] == gather(built["same"], (), None).prompts
        assert (document["kind"], document["machine"]["cores"] > 0) == (row["documents"][0]["kind"], True)


@pytest.mark.slow
def test_bench_saves_its_document(artifact: Path, trtspec: Run) -> None:
    assert trtspec("bench", artifact, "--max-tokens", 4, "--runs", 1).code == 0
    row = rows(trtspec, artifact)["load"]
    assert (row["state"], row["documents"][0]["kind"]) == (MISSING, "bench")
    assert row["evidence"].endswith("one request at a time")


def test_bench_document_is_not_a_load_measurement(artifact: Path, trtspec: Run) -> None:
    bench = write(artifact.parent / "b.json", {"speculative": {}, "speedup": 1.5}, -5)
    row = rows(trtspec, artifact, "--results", bench)["load"]
    assert row["state"] == MISSING
    assert row["evidence"].endswith("1.5 times as fast, one request at a time")
    load = write(artifact.parent / "l.json", {"kind": "load"}, -5)
    assert rows(trtspec, artifact, "--results", bench, "--results", load)["load"]["state"] == DONE


@pytest.mark.slow
@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"kind": "novel"}', '{"kind": ["tune"]}', "{" * 10_000, '{"a": 1, "a": 2}']
)
def test_invalid_document_is_rejected_with_its_path(text: str, artifact: Path, trtspec: Run) -> None:
    path = artifact.parent / "x.json"
    path.write_text(text)
    refused = trtspec("readiness", artifact, "--results", path)
    assert refused.code == 1
    assert str(path) in refused.err


@pytest.mark.slow
def test_damaged_saved_document_is_ignored(artifact: Path, trtspec: Run) -> None:
    folder = artifact.parents[1] / "state" / "documents" / manifest_sha256(artifact)
    folder.mkdir(parents=True)
    for kind in KINDS:
        (folder / f"{kind}.json").write_text("{")
    assert rows(trtspec, artifact)["baseline"]["evidence"].startswith("no saved result")


LOOSER = [
    ({"gates__lossless": False}, "gates.lossless"),
    ({"gates__quantized_parity": 0.5}, "gates.quantized_parity"),
    ({"serving__rollout__min_requests": 1}, "serving.rollout.min_requests"),
    ({"serving__rollout__max_failed": 5}, "serving.rollout.max_failed"),
    ({"serving__rollout__max_latency_ratio": 9.0}, "serving.rollout.max_latency_ratio"),
    ({"serving__kv_cache_fraction": 0.99}, "serving.kv_cache_fraction"),
    ({"target__allow_nonfinite": True}, "target.allow_nonfinite"),
    ({"speculation__acceptance": "typical"}, "speculation.options.lossy"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("settings", "named"), LOOSER)
def test_setting_looser_than_its_default_is_reported(
    facts: ReadinessInputs, settings: dict[str, Any], named: str
) -> None:
    row = readiness.defaults(changed(facts, **settings))
    assert row.state == MISSING
    assert row.evidence.startswith(named)
    assert ", " not in row.evidence.replace(", by default", "")


def test_setting_stricter_than_its_default_is_done(facts: ReadinessInputs) -> None:
    stricter = {"gates__quantized_parity": 0.99, "serving__rollout__min_requests": 100, "serving__max_queue_size": 1}
    assert readiness.defaults(changed(facts, **stricter)).state == DONE


@pytest.mark.slow
@pytest.mark.parametrize(
    ("row", "settings", "state"),
    [
        (readiness.limits, {"gates__min_acceptance": 0.5, "gates__min_speedup": 1.1}, DONE),
        (readiness.limits, {"gates__min_acceptance": 0.5, "gates__min_speedup": 0.0}, MISSING),
        (readiness.limits, {"speculation__method": "none"}, NOT_NEEDED),
        (readiness.gates, {"speculation__method": "none"}, NOT_NEEDED),
        (readiness.load, {"speculation__method": "none"}, NOT_NEEDED),
        (readiness.ITEMS["profile"], {"speculation__method": "none"}, NOT_NEEDED),
        (readiness.ITEMS["tuning"], {"speculation__method": "none"}, NOT_NEEDED),
        (readiness.parity, {"target__quantization__weights": "fp8"}, MISSING),
        (readiness.warmup, {"serving__warmup": True}, DONE),
        (readiness.warmup, {"serving__warmup": False}, MISSING),
        (readiness.rollout, {"serving__openai": False}, MISSING),
        (readiness.rollout, {"serving__rollout__canary": [100]}, MISSING),
        (readiness.rollout, {"serving__rollout__canary": [1, 50]}, DONE),
    ],
)
def test_row_state_follows_the_recipe(
    facts: ReadinessInputs, row: Callable[[ReadinessInputs], ReadinessItem], settings: dict[str, Any], state: str
) -> None:
    assert row(changed(facts, **settings)).state == state


@pytest.mark.slow
def test_verified_quantized_target_has_parity_done(facts: ReadinessInputs, artifact: Path, trtspec: Run) -> None:
    assert trtspec("verify", artifact, "--max-tokens", 4).code == 0
    compared = changed(gather(artifact, (), None), target__quantization__weights="fp8")
    assert readiness.parity(compared).state == DONE


@pytest.mark.slow
def test_prometheus_decides_the_metrics_and_alerts_rows(artifact: Path, trtspec: Run) -> None:
    names = [rule["alert"] for group in rules()["groups"] for rule in group["rules"] if "alert" in rule]
    known = list(names)

    def answer(path: str) -> tuple[int, bytes]:
        if "/query" in path:
            data: dict[str, Any] = {"result": [{"value": [0, "4"]}]}
        else:
            data = {"groups": [{"rules": [{"type": "alerting", "name": name} for name in known]}]}
        return 200, json.dumps({"status": "success", "data": data}).encode()

    with serving(answer) as url:
        found = rows(trtspec, artifact, "--prometheus", url)
        assert (found["metrics"]["state"], found["alerts"]["state"]) == (DONE, DONE)
        lost = known.pop()
        row = rows(trtspec, artifact, "--prometheus", url)["alerts"]
        assert (row["state"], row["evidence"]) == (MISSING, f"{url} lacks {lost}")
    with serving(lambda path: (200, b'{"status": "success", "data": {"result": [], "groups": []}}')) as url:
        assert rows(trtspec, artifact, "--prometheus", url)["metrics"]["state"] == MISSING
    assert trtspec("readiness", artifact, "--prometheus", url).code == 1


def test_rollback_row_follows_the_deployment_revisions(artifact: Path, trtspec: Run) -> None:
    journal, own = DeploymentJournal("tiny"), manifest_sha256(artifact)
    journal.root.mkdir(parents=True)
    pid = os.getpid()
    another = DeploymentRecord("tiny", "live", "/build/a", pid, start_time(pid), 1, 2, 3, "x", True)
    another = replace(another, manifest="0" * 64, revision=1)
    journal.write(another)
    assert "serves revision 1" in rows(trtspec, artifact)["rollback"]["evidence"]
    journal.write(replace(another, manifest=own, revision=2))
    assert rows(trtspec, artifact)["rollback"]["state"] == MISSING
    (journal.root / "revisions" / "1" / "artifact").mkdir(parents=True)
    assert rows(trtspec, artifact)["rollback"]["evidence"] == "revision 1 of tiny is kept"
    journal.write(replace(another, state="stopped"))
    assert rows(trtspec, artifact)["rollback"]["state"] == MISSING


def test_readiness_page_has_every_row() -> None:
    page = (Path(__file__).parents[2] / "docs" / "readiness.md").read_text(encoding="utf-8")
    named = [
        name for line in page.splitlines() if line.startswith("| ") for name in line.split("|")[1].strip().split(", ")
    ]
    assert [name for name in named if name in NAMES] == [*NAMES]
    assert tuple(ITEMS) == NAMES


def test_missing_artifact_is_an_error(workplace: Path, trtspec: Run) -> None:
    refused = trtspec("readiness", "nosuch")
    assert (refused.code, refused.out) == (1, "")
    assert "no artifact: the directory does not exist" in refused.err


@pytest.mark.slow
def test_build_date_comes_from_the_manifest_file(artifact: Path, trtspec: Run) -> None:
    os.utime(artifact / MANIFEST, (0, 0))
    assert "1970-01-01" in rows(trtspec, artifact)["built"]["evidence"]
