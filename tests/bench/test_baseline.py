# SPDX-License-Identifier: Apache-2.0
"""`baseline`: the target alone, in this process and on a server, and the target and prompts in its document."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Run
from tests.report.advisor.serving import serving
from trtspec.bench.artifact import artifact_prompts
from trtspec.bench.bench import BaselineMeasurements, ask_server
from trtspec.bench.documents import prompts_sha256, target_sha256
from trtspec.core.errors import DeployError
from trtspec.core.processes import start_time
from trtspec.deployment.journal import DeploymentJournal, DeploymentRecord
from trtspec.serving.triton.client import Client
from trtspec.store.artifact import load_manifest, manifest_sha256

FEW = ("--max-tokens", 4, "--runs", 2)


@pytest.mark.slow
def test_document_identifies_the_target_and_the_prompts(artifact: Path, trtspec: Run) -> None:
    out = artifact.parent / "baseline.json"
    found = trtspec("baseline", artifact, *FEW, "-o", out, "--json").document
    assert json.loads(out.read_text()) == found
    prompts = artifact_prompts(artifact, None)
    assert found["prompts"] == {"count": len(prompts), "sha256": prompts_sha256(each.text for each in prompts)}
    assert found["manifest"] == manifest_sha256(artifact)
    assert found["target"]["sha256"] == target_sha256(load_manifest(artifact))
    assert (found["kind"], found["max_tokens"], found["runs"], found["engine"]["measured_by"]) == (
        "baseline", 4, 2, "process",
    )  # fmt: skip
    assert found["new_tokens"] == sum(each["new_tokens"] for each in found["samples"])
    for run, rate in enumerate(found["tokens_per_s"]):
        spent = sum(each["seconds"][run] for each in found["samples"])
        assert rate == pytest.approx(found["new_tokens"] / spent, rel=0.01)
    assert found["machine"]["cores"] >= 1
    assert found["versions"]["trtspec"]


@pytest.mark.slow
def test_target_digest_does_not_depend_on_the_draft(recipe: Path, trtspec: Run) -> None:
    digests = {}
    for name, overrides in {
        "pair": (),
        "alone": ("--set", "speculation={method: none}"),
        "fp16": ("--set", "target.dtype=float16"),
    }.items():
        out = recipe.parent / name
        assert trtspec("build", recipe, *overrides, "--out", out).code == 0
        digests[name] = target_sha256(load_manifest(out))
    assert digests["pair"] == digests["alone"] != digests["fp16"]


def test_percentiles_cover_the_requests_of_all_runs() -> None:
    found = BaselineMeasurements([[1.0, 3.0], [2.0, 4.0]], [10, 0]).as_dict()
    assert found["tokens_per_s"] == [2.5, 1.67]
    assert found["median_tokens_per_s"] == 2.08
    assert found["request_s"] == {"mean": 2.5, "p50": 2.5, "p95": 3.85}
    assert found["ms_per_token"] == {"mean": 150.0, "p50": 150.0, "p95": 195.0}  # an empty response is excluded


@pytest.mark.slow
def test_baseline_with_other_prompts_shows_a_summary(artifact: Path, trtspec: Run) -> None:
    own = artifact.parent / "own.txt"
    own.write_text("one\ntwo\n")
    shown = trtspec("baseline", artifact, *FEW, "--prompts", own)
    assert shown.code == 0
    assert "tiny: 2 prompts, at most 4 tokens each" in shown.out
    assert "tokens/s (median of 2 runs)" in shown.out


def deployed(artifact: Path, url: str, manifest: str = "") -> None:
    journal, port = DeploymentJournal("tiny"), int(url.rpartition(":")[2])
    journal.root.mkdir(parents=True, exist_ok=True)
    pid = os.getpid()
    record = DeploymentRecord("tiny", "live", str(artifact), pid, start_time(pid), port, 2, 3, "x", detached=True)
    journal.write(replace(record, manifest=manifest or manifest_sha256(artifact)))


class Server:
    """A fake ensemble that records its requests."""

    def __init__(self, **answer: Any) -> None:
        self.asked: list[dict[str, Any]] = []
        self.answer = answer

    def __call__(self, path: str, body: bytes) -> tuple[int, bytes]:
        request = json.loads(body)
        self.asked.append(request)
        answer = {"text_output": "x", "num_output_tokens": request["max_tokens"], **self.answer}
        return 200, json.dumps({key: value for key, value in answer.items() if value is not None}).encode()


@pytest.mark.slow
def test_server_baseline_sends_zero_draft_tokens(artifact: Path, trtspec: Run) -> None:
    server = Server()
    with serving(lambda path: (200, b""), server) as url:
        deployed(artifact, url)
        found = trtspec("baseline", "tiny", *FEW, "--json").document
    assert found["engine"]["measured_by"] == "server"
    assert {request["num_draft_tokens"] for request in server.asked[1:]} <= {0}
    prompts = len(artifact_prompts(artifact, None))
    assert sum(request["text_input"] != "Hello" for request in server.asked) == 2 * prompts + 1
    assert found["new_tokens"] == 4 * prompts


@pytest.mark.slow
def test_server_that_cannot_switch_drafting_off_is_rejected(artifact: Path) -> None:
    def refuse(path: str, body: bytes) -> tuple[int, bytes]:
        return 400, b'{"error": "num_draft_tokens is not supported"}'

    with (
        serving(lambda path: (200, b""), refuse) as url,
        pytest.raises(DeployError, match="cannot switch drafting off"),
    ):
        ask_server(Client.at(url), load_manifest(artifact), 4)


@pytest.mark.slow
@pytest.mark.parametrize("tokens", [None, "4", [4]])
def test_responses_without_token_counts_are_rejected(artifact: Path, trtspec: Run, tokens: Any) -> None:
    with serving(lambda path: (200, b""), Server(num_output_tokens=tokens)) as url:
        deployed(artifact, url)
        refused = trtspec("baseline", "tiny", *FEW)
    assert refused.code == 1
    assert "the server's responses lack num_output_tokens" in refused.err


@pytest.mark.slow
def test_artifact_rebuilt_after_deployment_is_rejected(artifact: Path, trtspec: Run) -> None:
    with serving(lambda path: (200, b""), Server()) as url:
        deployed(artifact, url, "0" * 64)
        refused = trtspec("baseline", "tiny", *FEW)
    assert refused.code == 1
    assert "rebuilt after its deployment" in refused.err


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("http://127.0.0.1:1", "a URL does not identify the artifact"),
        ("no/artifact", "no artifact: the directory does not exist"),
    ],
)
def test_url_or_missing_artifact_is_rejected(workplace: Path, trtspec: Run, what: str, message: str) -> None:
    refused = trtspec("baseline", what)
    assert (refused.code, refused.out) == (1, "")
    assert message in refused.err
