# SPDX-License-Identifier: Apache-2.0
"""An Edge-LLM recipe from build to shutdown on a real tritonserver, with doubles for its commands and runtime."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.backends.deployed import deployed, lend_packages, listed, measured, refused
from tests.backends.edge_llm.test_steps import install, show_gpu, tools  # noqa: F401 - a fixture
from tests.conftest import Run
from tests.serving.triton.artifact import rewrite_manifest
from tests.serving.triton.serving import DOUBLES
from tests.serving.triton.streams import generate_stream
from trtspec.backends.edge_llm.artifact import MODEL_JSON
from trtspec.bench.verify import DEPLOY_PROMPTS
from trtspec.engine.prompts.load import load_prompts

ANSWER = ["answer: ", "é ", "and more"]
ON_EDGE = ("--set", "engine.backend=edge_llm", "--set", "engine.gpu=rtx5090", "--set", "engine.max_batch_size=1")


@pytest.fixture
def built(workplace: Path, trtspec: Run, monkeypatch: pytest.MonkeyPatch, tools: Path) -> Path:  # noqa: F811
    """The artifact of a machine that can build engines; its target answers every prompt of the gates identically."""
    install(monkeypatch, tensorrt="11.0.0.114")
    show_gpu(monkeypatch)
    done = trtspec("build", "quickstart-eagle3", *ON_EDGE)
    assert done.code == 0, done.err
    root = workplace / "build" / "quickstart-eagle3"
    prompts = [prompt.text for prompt in load_prompts(root / "prompts" / "quickstart.jsonl")[:DEPLOY_PROMPTS]]
    table = dict.fromkeys(["Hello", *prompts], ANSWER)
    (root / "checkpoints" / "target" / "answers.json").write_text(json.dumps(table))
    rewrite_manifest(root)
    return root


@pytest.mark.triton
def test_edge_llm_artifact_is_deployed_benchmarked_and_stopped(
    built: Path, trtspec: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # deploy searches for this name, the model imports the package that is installed with it
    (tmp_path / "installed" / "tensorrt_edgellm").mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path / "installed")
    lend_packages(monkeypatch, DOUBLES / "edge_llm", built / "model_repository" / MODEL_JSON.parent)
    with deployed(trtspec, built, "--skip-gate", "min_speedup") as (document, client):
        left_out = {each["name"]: each["reason"] for each in document["left_out"]}
        assert left_out == {"min_speedup": "request", "min_acceptance": "engine"}, "lossless held"
        whole = client.generate({"text_input": "Hello", "max_tokens": 64})
        assert (whole["text_output"], whole["num_output_tokens"]) == ("".join(ANSWER), 3)
        events = list(generate_stream(client, {"text_input": "Hello", "max_tokens": 64}))
        assert [event["text_output"] for event in events] == ANSWER
        assert measured(trtspec, built, "Hello")["speedup"] > 0
        assert listed(trtspec) == ("quickstart-eagle3", "live", "edge_llm", "eagle3")
        stopped = trtspec("stop", "quickstart-eagle3", "--json").document
        assert (stopped["state"], stopped["was_running"]) == ("stopped", True)
        assert listed(trtspec)[1] == "stopped"


@pytest.mark.triton
def test_deploy_without_edge_llm_is_rejected_with_an_install_hint(built: Path, trtspec: Run) -> None:
    error = refused(trtspec, built)
    assert error["message"] == "the Python package tensorrt_edgellm is not installed here"
    assert error["hint"].startswith("pip install 'tensorrt-edgellm[server]==0.11.0'")
