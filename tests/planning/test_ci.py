# SPDX-License-Identifier: Apache-2.0
"""Pipelines of `trtspec ci`: valid by the vendors' schemas, and their commands run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests._support import forked
from tests._support.pages import commands_in, trtspec_commands
from tests.conftest import Run

SCHEMAS = {"github": ["vendor.github-workflows"], "gitlab": ["vendor.gitlab-ci", "--data-transform", "gitlab-ci"]}


def write_recipes(recipe: Path) -> list[Path]:
    """Write a recipe for a GPU engine and a matrix of two variants next to a recipe; return all three."""
    document = yaml.safe_load(recipe.read_text())
    gpu, matrix = recipe.with_name("gpu.yaml"), recipe.with_name("matrix.yaml")
    gpu.write_text(yaml.safe_dump({**document, "name": "gpu", "engine": {"backend": "vllm", "gpu": "h100"}}))
    matrix.write_text(yaml.safe_dump({**document, "name": "both", "matrix": {"speculation.draft_len": [2, 3]}}))
    return [recipe, gpu, matrix]


def scripts_of(pipeline: dict[str, Any], job: str) -> list[str]:
    """Return the shell texts of a job, in order."""
    if "jobs" in pipeline:
        return [step["run"] for step in pipeline["jobs"][job]["steps"] if "run" in step]
    return [*pipeline[job]["script"], *pipeline[job].get("after_script", ())]


@pytest.mark.parametrize("system", SCHEMAS)
def test_pipeline_is_valid_by_the_vendors_schema(system: str, recipe: Path, trtspec: Run) -> None:
    written = trtspec("ci", system, *write_recipes(recipe), "-o", "ci/pipeline.yml", "--cpu-runner", "small")
    assert (written.code, written.err) == (0, "ci/pipeline.yml: 4 builds\n")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", *SCHEMAS[system], "ci/pipeline.yml"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(("system", "job"), [("github", "build-tiny"), ("gitlab", "build tiny")])
def test_pipeline_signs_with_the_identity_of_the_job(system: str, job: str, recipe: Path, trtspec: Run) -> None:
    assert trtspec("ci", system, recipe, "--sign", "-o", "pipeline.yml").code == 0
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", *SCHEMAS[system], "pipeline.yml"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    pipeline = yaml.safe_load(Path("pipeline.yml").read_text())
    signing = [script for script in scripts_of(pipeline, job) if "trtspec sign build/tiny --keyless" in script]
    assert len(signing) == 1
    rights = pipeline["jobs"][job]["permissions"] if system == "github" else pipeline[job]["id_tokens"]
    expected = {"contents": "read", "id-token": "write"}
    assert rights == (expected if system == "github" else {"SIGSTORE_ID_TOKEN": {"aud": "sigstore"}})
    assert "sign" not in trtspec("ci", system, recipe).out


@pytest.mark.parametrize(("system", "prefix"), [("github", "build-"), ("gitlab", "build ")])
def test_pipeline_has_a_job_for_each_variant_on_the_right_runner(
    system: str, prefix: str, recipe: Path, trtspec: Run
) -> None:
    text = trtspec("ci", system, *write_recipes(recipe), "--cpu-runner", "small", "--gpu-runner", "h100").out
    pipeline = yaml.safe_load(text)
    jobs = pipeline.get("jobs", pipeline)
    runners = {name: job.get("runs-on") or job["tags"][0] for name, job in jobs.items() if name.startswith(prefix)}
    variants = [f"{prefix}both-draft_len-2", f"{prefix}both-draft_len-3"]
    assert runners == {f"{prefix}tiny": "small", f"{prefix}gpu": "h100", **dict.fromkeys(variants, "small")}
    assert any("--variant both-draft_len-3" in script for script in scripts_of(pipeline, variants[1]))


@pytest.mark.parametrize("system", SCHEMAS)
def test_commands_of_a_pipeline_are_accepted_by_the_parser(system: str, recipe: Path, trtspec: Run) -> None:
    pipeline = yaml.safe_load(trtspec("ci", system, *write_recipes(recipe)).out)
    jobs = [name for name, job in pipeline.get("jobs", pipeline).items() if "steps" in job or "script" in job]
    commands = [words for job in jobs for script in scripts_of(pipeline, job) for words in commands_in(script)]
    ours = [words for words in commands if words and words[0] == "trtspec"]
    assert len(ours) > 15
    for _, name, *arguments in ours:
        trtspec_commands()[name].make_context(name, [*takewhile(lambda word: word not in (">", ">>"), arguments)])


@pytest.mark.integration
def test_steps_of_a_github_job_leave_an_artifact_and_results(recipe: Path, trtspec: Run, tmp_path: Path) -> None:
    pipeline = yaml.safe_load(trtspec("ci", "github", recipe).out)
    programs = tmp_path / "programs"
    programs.mkdir()
    forked.make_program(programs / "trtspec")
    output, summary = tmp_path / "output", tmp_path / "summary"
    environment = {
        **os.environ,
        "PATH": os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ["PATH"]]),
        "TRTSPEC_CACHE": str(tmp_path / "store"),
        "GITHUB_OUTPUT": str(output),
        "GITHUB_STEP_SUMMARY": str(summary),
        "CI": "true",
    }
    for job in ("check", "build-tiny"):
        for script in scripts_of(pipeline, job):
            if "pip install" in script:
                continue
            command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]  # as GitHub's runner does
            done = subprocess.run(
                command, cwd=recipe.parent, env=environment, capture_output=True, text=True, timeout=300, check=False
            )
            assert done.returncode == 0, f"{script}\n{done.stdout}{done.stderr}"
    key = json.loads((recipe.parent / "build.json").read_text())["steps"][-1]["key"]
    assert output.read_text() == f"key={key}\n"
    with tarfile.open(recipe.parent / "tiny.tar") as packed:
        assert "tiny/manifest.json" in packed.getnames()
    assert "<testsuite" in (recipe.parent / "junit.xml").read_text()
    assert "convert-target" in summary.read_text()


def test_recipe_outside_the_project_is_rejected(recipe: Path, trtspec: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = recipe.parent / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    refused = trtspec("ci", "github", recipe)
    assert (refused.code, "the recipe is outside the project" in refused.err) == (1, True)


def test_two_recipes_of_one_name_are_rejected(recipe: Path, trtspec: Run) -> None:
    (copy := recipe.with_name("copy.yaml")).write_text(recipe.read_text())
    refused = trtspec("ci", "gitlab", recipe, copy)
    assert (refused.code, "two recipes are called tiny" in refused.err) == (1, True)


def test_path_that_a_ci_system_would_expand_is_rejected(recipe: Path, trtspec: Run) -> None:
    (copy := recipe.with_name("${{ secrets.KEY }}.yaml")).write_text(recipe.read_text())
    refused = trtspec("ci", "github", copy)
    assert (refused.code, "a CI system would expand $ in the path" in refused.err) == (1, True)


def test_json_document_has_the_jobs_and_the_pipeline(recipe: Path, trtspec: Run) -> None:
    document = trtspec("ci", "gitlab", recipe, "--json").document
    assert document["jobs"] == [{"name": "tiny", "recipe": "recipe.yaml", "needs_gpu": False}]
    assert yaml.safe_load(document["pipeline"])["stages"] == ["check", "build"]


@pytest.mark.parametrize("system", SCHEMAS)
def test_team_store_replaces_the_cache_and_is_read_only_for_merge_requests(
    system: str, recipe: Path, trtspec: Run
) -> None:
    written = trtspec("ci", system, recipe, "-o", "pipeline.yml", "--remote", "oci://registry.example.com/team/store")
    assert written.code == 0
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", *SCHEMAS[system], "pipeline.yml"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    text = Path("pipeline.yml").read_text()
    assert "actions/cache" not in text
    assert "fallback_keys" not in text
    pipeline = yaml.safe_load(text)
    if system == "github":
        mode = "${{ github.event_name == 'pull_request' && 'read' || 'read-write' }}"
        assert pipeline["env"]["TRTSPEC_REMOTE"] == "oci://registry.example.com/team/store"
        assert pipeline["env"]["TRTSPEC_REMOTE_MODE"] == mode
    else:
        assert pipeline["variables"]["TRTSPEC_REMOTE"] == "oci://registry.example.com/team/store"
        assert pipeline["workflow"]["rules"][0]["variables"] == {"TRTSPEC_REMOTE_MODE": "read"}
    assert trtspec("ci", system, recipe, "--remote", "/srv/team").code == 1
