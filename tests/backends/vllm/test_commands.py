# SPDX-License-Identifier: Apache-2.0
"""The real vLLM on a CPU with the commands: one recipe deployed with and without speculation."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.backends.deployed import need_server
from tests.conftest import Run
from trtspec.backends.vllm import VARIABLE
from trtspec.core.paths import recipes_dir
from trtspec.engine.prompts.load import load_prompts

pytestmark = [pytest.mark.vllm, pytest.mark.triton, pytest.mark.slow]

MODELS, PROMPTS = recipes_dir() / "models", recipes_dir() / "prompts" / "quickstart.jsonl"
LOADING_S = 500
DRAFTS = {"method": "draft_target", "draft_len": 5, "draft": {"model": str(MODELS / "quickstart-draft")}}
SPECULATION = {"plain": {"method": "none"}, "drafting": DRAFTS}


@pytest.fixture
def deployed(workplace: Path, trtspec: Run, vllm_environment: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Both are built and served, `drafting` with gates on the texts of `plain`; returns a file with a few prompts."""
    need_server()
    monkeypatch.setenv(VARIABLE, str(vllm_environment))
    prompts = workplace / "prompts.jsonl"
    prompts.write_text("".join(json.dumps({"prompt": each.text}) + "\n" for each in load_prompts(PROMPTS)[:4]))
    try:
        for name, speculation in SPECULATION.items():
            recipe = workplace / f"{name}.yaml"
            document = {
                "schema": "trtspec.recipe/1",
                "name": name,
                "target": {"model": str(MODELS / "quickstart-target"), "dtype": "float32"},
                "speculation": speculation,
                "engine": {"backend": "vllm", "device": "cpu", "max_batch_size": 8, "max_seq_len": 512},
                "gates": {"prompts": str(prompts)} | ({"min_acceptance": 0.5} if name == "drafting" else {}),
            }
            recipe.write_text(yaml.safe_dump(document))
            assert trtspec("build", recipe).code == 0
            beside = ("--baseline", "plain") if name == "drafting" else ("--skip-gate", "lossless")
            started = trtspec("deploy", f"build/{name}", "--detach", "--json", "--timeout", LOADING_S, *beside)
            assert started.code == 0, started.err
            assert [each["name"] for each in started.document["left_out"]] == ["lossless"] * (name == "plain")
        yield prompts
    finally:
        for name in SPECULATION:
            trtspec("stop", name)


def test_deployment_is_benchmarked_against_its_target_verified_and_listed(deployed: Path, trtspec: Run) -> None:
    beside = ("--baseline", "plain", "--runs", 1, "--max-tokens", 32)
    measured = trtspec("bench", "drafting", *beside, "--json").document
    assert measured["speculative"]["acceptance_rate"] > 0.5
    assert measured["baseline"]["acceptance_rate"] == 0.0
    assert measured["speedup_interval"][0] <= measured["speedup"] <= measured["speedup_interval"][1]
    judged = trtspec("bench", "drafting", *beside, "--gates", "--json")
    assert (judged.code, judged.document["ok"]) == (0, True), judged.err
    verdicts = {each["name"]: (each["ok"], each["measured_by"]) for each in judged.document["checks"]}
    assert verdicts["lossless"] == verdicts["min_acceptance"] == (True, "server")
    report = trtspec("verify", "build/drafting", "--json")
    assert (report.code, report.document["ok"]) == (0, True), report.err
    status = trtspec("status", "drafting", "--json").document
    assert (status["state"], status["probe"]["ok"]) == ("live", True)
    assert {(each["name"], each["backend"]) for each in trtspec("ps", "--json").document["deployments"]} == {
        ("plain", "vllm"), ("drafting", "vllm"),
    }  # fmt: skip
    assert trtspec("stop", "drafting", "--json").document["state"] == "stopped"
