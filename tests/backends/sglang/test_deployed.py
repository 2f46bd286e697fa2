# SPDX-License-Identifier: Apache-2.0
"""The quickstart on SGLang from build to shutdown on a real tritonserver, with a double of sglang."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.backends.deployed import deployed, lend_packages, listed, measured, refused
from tests.conftest import Run
from tests.serving.triton.artifact import rewrite_manifest
from tests.serving.triton.serving import DOUBLES
from tests.serving.triton.streams import generate_stream
from trtspec.backends.sglang.artifact import ENGINE_JSON
from trtspec.bench.verify import DEPLOY_PROMPTS
from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.deployment.journal import DeploymentJournal
from trtspec.deployment.revision import revision_dir
from trtspec.engine.prompts.load import load_prompts

ANSWER = "answer: é and more"
ON_SGLANG = ("--set", "engine.backend=sglang", "--set", "engine.gpu=h100")


@pytest.fixture
def built(workplace: Path, trtspec: Run) -> Path:
    """The artifact; its target gives the same answer to every prompt of its gates, and accepts 9 of 12 draft tokens."""
    assert trtspec("build", "quickstart", *ON_SGLANG).code == 0
    root = workplace / "build" / "quickstart"
    tokenizer = Tokenizer(root / "tokenizer")
    ids = [*tokenizer.encode(ANSWER), tokenizer.end_ids[0]]
    steps = [ids[at : at + 2] for at in range(0, len(ids), 2)]
    answer = {"steps": steps, "drafted": 12, "accepted": 9, "pause_s": 0.0, "queue_s": 0.0}
    prompts = [prompt.text for prompt in load_prompts(root / "prompts" / "quickstart.jsonl")[:DEPLOY_PROMPTS]]
    table = {" ".join(map(str, tokenizer.encode(text))): answer for text in ("Hello", *prompts)}
    (root / "checkpoints" / "target" / "answers.json").write_text(json.dumps(table))
    rewrite_manifest(root)
    return root


@pytest.mark.triton
def test_sglang_artifact_is_deployed_benchmarked_and_stopped(
    built: Path, trtspec: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    lend_packages(monkeypatch, DOUBLES / "sglang", built / "model_repository" / ENGINE_JSON.parent)
    with deployed(trtspec, built, "--skip-gate", "min_speedup") as (document, client):
        left_out = {each["name"]: each["reason"] for each in document["left_out"]}
        assert left_out == {"min_speedup": "request", "lossless": "engine"}, "min_acceptance held"
        whole = client.generate({"text_input": "Hello", "max_tokens": 64})
        assert whole["text_output"] == ANSWER
        assert (whole["total_draft_tokens"], whole["total_accepted_draft_tokens"]) == (12, 9)
        events = list(generate_stream(client, {"text_input": "Hello", "max_tokens": 64}))
        assert len(events) > 1  # the double is faster than the server, so one may have the tokens of many steps
        assert "".join(event["text_output"] for event in events) == ANSWER
        assert measured(trtspec, built, "Hello")["speculative"]["acceptance_rate"] == 0.75
        alone = trtspec("bench", "quickstart", "--runs", 1, "--json")
        assert (alone.code, "--baseline" in alone.document["error"]["hint"]) == (1, True), alone
        assert listed(trtspec) == ("quickstart", "live", "sglang", "draft_target")
        stopped = trtspec("stop", "quickstart", "--json").document
        assert (stopped["state"], stopped["was_running"]) == ("stopped", True)
        assert listed(trtspec)[1] == "stopped"
    pinned = revision_dir(DeploymentJournal("quickstart"), 1) / "artifact"
    asked = (pinned / "checkpoints" / "target" / "requests.jsonl").read_text().splitlines()
    assert json.loads(asked[-1]) == {"event": "shutdown"}, "the engine is shut down, not killed"


@pytest.mark.triton
def test_deploy_without_sglang_is_rejected_with_an_install_hint(built: Path, trtspec: Run) -> None:
    error = refused(trtspec, built)
    assert error["message"] == "the Python package sglang is not installed here"
    assert error["hint"].startswith("pip install sglang==")
