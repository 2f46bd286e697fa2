# SPDX-License-Identifier: Apache-2.0
"""`trtspec compare` on recipes, plans, artifacts, reports and untrusted files."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests._support.manifests import read_manifest, resealed, write_manifest
from tests.conftest import Outcome, Run
from trtspec.store.artifact import load_manifest
from trtspec.store.file_records import FileRecord

BENCH: dict[str, Any] = {
    "format_version": 1,
    "prompts": 3,
    "max_tokens": 8,
    "acceptance": "exact",
    "baseline": {
        "tokens_per_s": [1.0, 2.0, 3.0],
        "median_tokens_per_s": 2.0,
        "acceptance_rate": 0.0,
        "mean_accepted_len": 1.0,
    },
    "speculative": {
        "tokens_per_s": [2.0, 4.0, 6.0],
        "median_tokens_per_s": 4.0,
        "acceptance_rate": 0.5,
        "mean_accepted_len": 2.5,
    },
    "speedup": 2.0,
    "speedup_interval": [1.9, 2.1],
    "identical_texts": 3,
}


def verified(acceptance_rate: float) -> dict[str, Any]:
    check = {"name": "min_acceptance", "ok": acceptance_rate >= 0.5, "value": acceptance_rate, "limit": 0.5}
    return {
        "format_version": 1,
        "ok": True,
        "acceptance": "exact",
        "checks": [{**check, "detail": "in words", "gate": "min_acceptance"}],
        "manifest": "0" * 64,
    }


def saved(path: Path, document: Any) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return path


def changed(recipe: Path, name: str, *edits: tuple[str, str]) -> Path:
    text = recipe.read_text()
    for old, new in edits:
        assert old in text
        text = text.replace(old, new)
    return saved(recipe.parent / name, text)


def flat_output(outcome: Outcome) -> str:
    return outcome.out + outcome.err


def differences(outcome: Outcome) -> dict[str, tuple[Any, Any, str]]:
    listed = outcome.document["differences"]
    return {f"{each['section']} {each['path']}": (each["a"], each["b"], each["what"]) for each in listed}


# Recipes and plans


def test_recipes_differ_in_resolved_values_steps_and_memory(trtspec: Run, recipe: Path) -> None:
    other = changed(
        recipe, "other.yaml", ("draft_len: 3", "draft_len: 4"), ("model: ./target", "model: ./target\n  dtype: float16")
    )
    compared = trtspec("compare", recipe, other, "--json")
    assert compared.code == 0
    found = differences(compared)
    assert found["recipe speculation.draft_len"] == (3, 4, "differs")
    assert found["recipe target.dtype"] == ("bfloat16", "float16", "differs")  # the default comes from the checkpoint
    assert "recipe name" not in found
    assert "steps copy-tokenizer" not in found
    effects = compared.document["effects"]
    assert {step["name"]: step["why"] for step in effects["steps"]} == {
        "convert-target": "dtype",
        "emit-repository": "parameters",
    }
    build = effects["build"]
    assert build["steps"] == ["convert-target", "emit-repository"]
    assert 0 < build["left_read_bytes"] < build["b_read_bytes"] == build["a_read_bytes"]
    assert 0 < build["left_write_bytes"] < build["b_write_bytes"]
    (gpu,) = effects["memory"]
    assert gpu["a_bytes"] < gpu["b_bytes"]
    assert compared.document["not_compared"] == {}
    assert compared.document["same"]["steps"] == 3


@pytest.mark.slow
def test_text_output_lists_differences_and_summarizes_the_rest(trtspec: Run, recipe: Path) -> None:
    other = changed(recipe, "other.yaml", ("draft_len: 3", "draft_len: 4"))
    said = flat_output(trtspec("compare", recipe, other))
    assert f"a: recipe {recipe}\nb: recipe {other}\n" in said
    assert "engine.max_batch_size" not in said
    assert "to build b after a: emit-repository\n" in said
    longer = flat_output(trtspec("compare", recipe, recipe, "--json"))
    assert '"left_write_bytes": 0' in longer
    assert "the same: recipe " in said
    assert "engine.max_batch" in flat_output(trtspec("compare", recipe, other, "--all"))
    assert "no difference; compared: recipe " in flat_output(trtspec("compare", recipe, recipe))


@pytest.mark.slow
def test_planned_write_bytes_match_the_artifact(trtspec: Run, recipe: Path, artifact: Path) -> None:
    build = trtspec("compare", recipe, artifact, "--json").document["effects"]["build"]
    written = sum(path.stat().st_size for path in (artifact / "checkpoints").rglob("*.safetensors"))
    others = sum(path.stat().st_size for name in ("tokenizer", "prompts") for path in (artifact / name).iterdir())
    assert build["a_write_bytes"] == written + others
    assert build["b_write_bytes"] is None


def test_draft_in_only_one_recipe_is_a_single_difference(trtspec: Run, recipe: Path) -> None:
    lines = "  method: draft_target\n  draft_len: 3\n  draft:\n    model: ./draft\n"
    other = changed(recipe, "other.yaml", (lines, "  method: ngram\n"))
    found = differences(trtspec("compare", recipe, other, "--json"))
    drafts = {path: each for path, each in found.items() if path.startswith("recipe speculation.draft.")}
    assert drafts == {}
    assert found["recipe speculation.draft"][0]["model"] == "./draft"
    assert found["recipe speculation.draft"][1:] == (None, "only in a")
    assert found["steps convert-draft"][1:] == (None, "only in a")


@pytest.mark.slow
def test_exit_code_option_signals_differences(trtspec: Run, recipe: Path) -> None:
    other = changed(recipe, "other.yaml", ("draft_len: 3", "draft_len: 4"))
    assert trtspec("compare", recipe, other).code == 0
    assert trtspec("compare", recipe, other, "--exit-code").code == 2
    assert trtspec("compare", recipe, recipe, "--exit-code", "--json").code == 0


def test_saved_plan_is_compared_with_the_current_recipe(trtspec: Run, recipe: Path) -> None:
    planned = trtspec("plan", recipe, "--json").document
    plan = saved(recipe.parent / "plan.json", planned)
    assert differences(trtspec("compare", plan, recipe, "--json")) == {}
    other = changed(recipe, "other.yaml", ("draft_len: 3", "draft_len: 4"))
    compared = trtspec("compare", plan, other, "--json").document
    assert compared["effects"]["steps"] == [{"name": "emit-repository", "what": "differs", "why": "parameters"}]
    # saved by an earlier trtspec, with fewer keys
    for key in ("recipe", "keys_are_final"):
        del planned[key]
    for step in planned["steps"]:
        del step["key_parts"], step["read_bytes"], step["write_bytes"]
    compared = trtspec("compare", saved(plan, planned), other, "--json").document
    assert compared["not_compared"] == {"recipe": "not in a, a plan"}
    assert compared["effects"]["steps"][0]["why"] == "not recorded"
    assert compared["effects"]["build"]["a_read_bytes"] is None
    assert compared["effects"]["build"]["b_read_bytes"] > 0


def test_provisional_step_keys_are_reported(trtspec: Run, recipe: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trtspec.planning.pipeline.READ_WHILE_PLANNING", 0)
    compared = trtspec("compare", recipe, recipe, "--json").document
    assert "step keys are not final" in compared["a"]["remarks"][0]


# Artifacts


@pytest.mark.slow
def test_artifacts_differ_in_recipe_steps_files_and_reports(trtspec: Run, recipe: Path, artifact: Path) -> None:
    other_recipe = changed(recipe, "other.yaml", ("draft_len: 3", "draft_len: 4"))
    other = recipe.parent / "other"
    assert trtspec("build", other_recipe, "--out", other).code == 0
    saved(artifact / "reports" / "verify.json", verified(0.8))
    saved(other / "reports" / "verify.json", verified(0.6))
    saved(other / "reports" / "bench.json", BENCH)
    compared = trtspec("compare", artifact, other, "--json")
    found = differences(compared)
    assert found["recipe speculation.draft_len"] == (3, 4, "differs")
    assert found["verify min_acceptance.value"] == (0.8, 0.6, "differs")
    assert [path for path in found if path.startswith("files ")]
    assert all(path.startswith("files model_repository/") for path in found if path.startswith("files "))
    document = compared.document
    assert document["same"]["tools"] == len(load_manifest(artifact).tools)
    files = document["effects"]["files"]
    total = len(load_manifest(artifact).files)
    assert (files["same"] + files["different"], files["only_a"], files["only_b"]) == (total, 0, 0)
    assert files["a_bytes"] == sum(file.size for file in load_manifest(artifact).files)
    assert document["effects"]["steps"][0]["why"] == "not recorded"
    assert document["not_compared"] == {"bench": "not in a, an artifact; trtspec bench --json prints it"}


@pytest.mark.slow
def test_file_in_only_one_artifact_is_reported(trtspec: Run, artifact: Path) -> None:
    other = artifact.parent / "other"
    shutil.copytree(artifact, other)
    manifest = read_manifest(other)
    dropped = manifest["files"].pop()
    write_manifest(other, manifest)
    compared = trtspec("compare", artifact, other, "--json")
    record = {"size": dropped["size"], "digest": FileRecord.model_validate(dropped).digest}
    assert differences(compared) == {f"files {dropped['path']}": (record, None, "only in a")}
    assert record["digest"][:12] in trtspec("compare", artifact, other).out
    assert compared.document["effects"]["files"]["only_a"] == 1


@pytest.mark.slow
def test_recipe_and_its_artifact_have_no_differences(trtspec: Run, recipe: Path, artifact: Path) -> None:
    compared = trtspec("compare", recipe, artifact, "--json")
    assert differences(compared) == {}
    assert set(compared.document["same"]) == {"recipe", "steps"}
    assert set(compared.document["not_compared"]) == {"memory", "tools", "files"}
    assert compared.document["not_compared"]["tools"] == "not in a, a recipe; trtspec build records them"
    said = flat_output(trtspec("compare", recipe, artifact))
    assert "not compared: memory: not in b, an artifact; trtspec plan reports it for a recipe" in said


# Reports


def test_bench_reports_are_compared_with_relative_differences(trtspec: Run, workplace: Path) -> None:
    slower = {**BENCH, "speedup": 1.5, "speedup_interval": [1.4, 1.6]}
    one, other = saved(workplace / "a.json", BENCH), saved(workplace / "b.json", slower)
    compared = trtspec("compare", one, other, "--json")
    assert differences(compared) == {
        "bench speedup": (2.0, 1.5, "differs"),
        "bench speedup_interval": ([1.9, 2.1], [1.4, 1.6], "differs"),
    }
    assert compared.document["differences"][0]["percent"] == -25.0
    assert "-25.0 %" in flat_output(trtspec("compare", one, other))
    effect = compared.document["effects"]["speedup"]
    assert effect == {"a": [1.9, 2.1], "b": [1.4, 1.6], "overlap": False}
    assert "speed-up: 1.90 to 2.10 and 1.40 to 1.60; the intervals do not overlap" in flat_output(
        trtspec("compare", one, other)
    )
    assert "baseline.tokens_per_s" not in flat_output(trtspec("compare", one, other, "--all"))  # samples


def test_verify_and_bench_reports_share_metrics(trtspec: Run, workplace: Path) -> None:
    one, other = saved(workplace / "a.json", verified(0.8)), saved(workplace / "b.json", BENCH)
    assert differences(trtspec("compare", one, other, "--json")) == {"report acceptance_rate": (0.8, 0.5, "differs")}


def test_bench_report_with_checks_is_compared(trtspec: Run, workplace: Path) -> None:
    """A report of `bench --gates` on a server, which skips some checks."""
    left_out = [{"name": "min_speedup", "reason": "server", "why": "in words"}]
    judged = {**BENCH, "ok": True, "checks": verified(0.5)["checks"], "left_out": left_out}
    one, other = saved(workplace / "a.json", BENCH), saved(workplace / "b.json", judged)
    found = differences(trtspec("compare", one, other, "--json"))
    assert found == {
        "bench ok": (None, True, "only in b"),
        "bench min_acceptance": (None, {"ok": True, "value": 0.5, "limit": 0.5}, "only in b"),
        "bench left_out": (None, {"min_speedup": "server"}, "only in b"),
    }


@pytest.mark.slow
def test_report_is_compared_with_its_artifact(trtspec: Run, workplace: Path, artifact: Path) -> None:
    saved(artifact / "reports" / "verify.json", verified(0.8))
    compared = trtspec("compare", saved(workplace / "now.json", verified(0.4)), artifact, "--json")
    assert differences(compared) == {
        "verify min_acceptance.value": (0.4, 0.8, "differs"),
        "verify min_acceptance.ok": (False, True, "differs"),
    }


def test_recipe_and_report_are_not_comparable(trtspec: Run, recipe: Path) -> None:
    refused = trtspec("compare", recipe, saved(recipe.parent / "a.json", BENCH))
    assert refused.code == 1
    assert "a recipe and a report have nothing in common" in refused.err
    assert "hint: compare recipes, plans and artifacts with each other, or reports with each other" in refused.err


# Untrusted files

BAD: dict[str, tuple[bytes, str]] = {
    "too large": (b"{" + b" " * (8 << 20), "larger than 8,388,608 bytes"),
    "too deep": (b'{"a":' * 100_000, "nested more than 32 deep"),
    "many values": (b'{"a": [' + b"0," * 400_001, "at most 400,000 are parsed"),
    "broken": (b'{"steps": ', "not valid JSON"),
    "no UTF-8": (b'{"\xff": 1}', "not valid JSON"),
    "a load": (b'{"format_version": 1, "kind": "load", "points": []}', "a benchmark under load"),
    "another document": (b'{"format_version": 1, "findings": []}', "not a document that can be compared"),
    "several plans": (b'{"format_version": 1, "recipes": []}', "the file has the plans of several recipes"),
    "a plan of bad types": (b'{"format_version": 1, "name": "x", "steps": 3, "memory": {"gpus": []}}', "steps: "),
    "another version": (b'{"format_version": 2, "acceptance": "exact", "checks": []}', "format_version: "),
    "a build": (b'{"format_version": 1, "steps": [], "name": "x"}', "memory: is missing"),
}


@pytest.mark.parametrize("what", BAD)
def test_invalid_document_is_rejected_with_a_hint(what: str, trtspec: Run, workplace: Path) -> None:
    data, message = BAD[what]
    path = workplace / "x.json"
    path.write_bytes(data)
    refused = trtspec("compare", path, path)
    assert refused.code == 1
    assert refused.err.startswith(f"error: {path}: ")
    assert message in refused.err
    assert "hint: " in refused.err


def test_invalid_manifest_missing_file_and_pipe_are_rejected(trtspec: Run, workplace: Path) -> None:
    (workplace / "manifest.json").write_text('{"schema": "trtspec.manifest/9"}')
    assert "its schema is 'trtspec.manifest/9'" in trtspec("compare", workplace, workplace).err
    assert "no such file or directory" in trtspec("compare", "nosuch", workplace).err
    os.mkfifo(workplace / "pipe")
    refused = trtspec("compare", "pipe", workplace)
    assert (refused.code, "not a regular file" in refused.err) == (1, True)


@pytest.mark.slow
def test_symlinked_or_invalid_report_of_an_artifact_is_skipped(trtspec: Run, workplace: Path, artifact: Path) -> None:
    (artifact / "reports").mkdir(exist_ok=True)
    (artifact / "reports" / "verify.json").symlink_to(saved(workplace / "secret.json", verified(0.4)))
    saved(artifact / "reports" / "bench.json", "{")
    (remark, other) = trtspec("compare", artifact, artifact, "--json").document["a"]["remarks"]
    assert remark.startswith("reports/bench.json is skipped: not valid JSON")
    assert other.startswith("reports/verify.json is skipped: a link to ")


@pytest.mark.slow
def test_control_characters_of_a_manifest_are_not_printed(trtspec: Run, artifact: Path) -> None:
    other = artifact.parent / "other"
    shutil.copytree(artifact, other)
    manifest = read_manifest(other)
    manifest["tools"] = {"\x1b[2J": "", "numpy": "\x1b[2J"}
    write_manifest(other, manifest)
    said = flat_output(trtspec("compare", artifact, other))
    assert "\x1b" not in said
    assert "tools" in said


def test_control_characters_of_a_plan_are_not_printed(trtspec: Run, recipe: Path) -> None:
    planned = trtspec("plan", recipe, "--json").document
    for step in planned["steps"]:
        step["key_parts"]["\x1b[2J"] = step["key"] = "0" * 64
        step["name"] += "\x1b[2J"
    plan = saved(recipe.parent / "plan.json", planned)
    assert "\x1b" not in flat_output(trtspec("compare", plan, recipe))
    assert "\x1b" not in flat_output(trtspec("compare", recipe, plan))
    planned["steps"][0]["key_parts"]["\x1b[2J"] = 1
    refused = trtspec("compare", saved(plan, planned), recipe)
    assert (refused.code, "\x1b" in refused.err) == (1, False)


@pytest.mark.slow
@pytest.mark.parametrize("depth", [40, 900, 100_000])
def test_deeply_nested_manifest_is_rejected(depth: int, trtspec: Run, artifact: Path) -> None:
    other = artifact.parent / "other"
    shutil.copytree(artifact, other)
    text = (other / "manifest.json").read_text()
    deep = '{"a":' * depth + "1" + "}" * depth
    (other / "manifest.json").write_text(resealed(text.replace('"gpu": {}', f'"gpu": {{"x": {deep}}}')))
    for arguments in ((artifact, other), (other, other), (other, other, "--all", "--json")):
        refused = trtspec("compare", *arguments)
        assert refused.code == 1
        assert f"error: {other}/manifest.json: n" in refused.err


def test_shipped_recipes_are_compared_by_name(workplace: Path, trtspec: Run) -> None:
    compared = trtspec("compare", "quickstart", "quickstart-ngram", "--json")
    assert compared.code == 0
    assert (compared.document["a"]["name"], compared.document["b"]["name"]) == ("quickstart", "quickstart-ngram")
    assert trtspec("compare", "quickstart", "quickstart-ngrm").code == 1
