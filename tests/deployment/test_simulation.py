# SPDX-License-Identifier: Apache-2.0
"""Capacity tests with forced acceptance: their results, their private server, and every command that rejects them."""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
import yaml

from tests.backends.deployed import deployed, need_server
from tests.conftest import Run
from tests.deployment.test_journal import RECORD
from trtspec.backends.base import find_backend
from trtspec.backends.serving import StandaloneServer
from trtspec.bench.artifact import read_artifact
from trtspec.bench.documents import list_documents, read_document, target_sha256
from trtspec.core.errors import DeployError, TrtspecError, VerificationFailed
from trtspec.deployment.base import serve, status
from trtspec.deployment.journal import DeploymentJournal
from trtspec.deployment.options import DeployOptions
from trtspec.deployment.rollout import commands
from trtspec.deployment.simulation import make_simulated_artifact, simulated_server
from trtspec.serving.gateway.command import gateway_config
from trtspec.serving.triton.client import Client
from trtspec.store.artifact import Artifact, load_artifact, load_manifest

pytestmark = pytest.mark.integration

RATES = (0.9, 0.6, 0.3)
FEW = ("--runs", 1, "--max-tokens", 24)
NOT_ITS_TEXTS = "the acceptance of drafts is simulated, so its texts are not its target's"


@pytest.fixture
def simulated(artifact: Path, tmp_path: Path) -> Artifact:
    """The artifact of a capacity test, as its private server has it."""
    place = tmp_path / "test"
    place.mkdir()
    return make_simulated_artifact(artifact, read_artifact(artifact), RATES, place)


def test_manifest_records_the_simulation_and_nothing_else(artifact: Path, simulated: Artifact) -> None:
    built = load_manifest(artifact)
    assert built.simulated_acceptance == ()
    assert b"simulated" not in (artifact / "manifest.json").read_bytes()
    assert simulated.manifest.simulated_acceptance == RATES
    digests, changed = ({each.path: each.digest for each in it.files} for it in (built, simulated.manifest))
    assert digests.keys() == changed.keys()
    assert [path for path in digests if digests[path] != changed[path]] == [
        "model_repository/tensorrt_llm/config.pbtxt"
    ]


REFUSED = {
    "deploy": ("deploy", "{}", "--detach"),
    "render": ("deploy", "{}", "--target", "kubernetes", "--render", "out"),
    "docker": ("deploy", "{}", "--target", "docker", "--render", "out"),
    "bench": ("bench", "{}"),
    "gates": ("bench", "{}", "--gates"),
    "again": ("bench", "{}", "--simulate-acceptance", "2"),
    "generate": ("generate", "{}", "--prompt", "once"),
    "baseline": ("baseline", "{}"),
}


@pytest.mark.parametrize("command", REFUSED.values(), ids=REFUSED)
def test_commands_reject_a_simulated_artifact(simulated: Artifact, trtspec: Run, command: tuple[str, ...]) -> None:
    refused = trtspec(*(word.format(simulated.root) for word in command))
    assert refused.code == 110
    assert NOT_ITS_TEXTS in refused.err
    assert not Path("out").exists()


def test_verify_fails_by_the_name_of_the_check(simulated: Artifact, trtspec: Run) -> None:
    failed = trtspec("verify", simulated.root, "--json")
    assert failed.code == 110
    by_name = {check["name"]: check["ok"] for check in failed.document["checks"]}
    assert by_name == {"files": True, "simulated": False}
    assert failed.document["ok"] is False


def test_servers_and_rollouts_reject_a_simulated_artifact(artifact: Path, simulated: Artifact) -> None:
    with pytest.raises(VerificationFailed, match=NOT_ITS_TEXTS):
        serve(simulated, "local", DeployOptions())
    journal, live = DeploymentJournal("tiny"), RECORD
    with pytest.raises(VerificationFailed, match=NOT_ITS_TEXTS):
        commands._run_rollout(journal, live, simulated, DeployOptions())
    marked = replace(live, method="ngram (simulated)")
    with pytest.raises(DeployError, match="is a capacity test with simulated acceptance"):
        commands._run_rollout(journal, marked, load_artifact(artifact), DeployOptions())


def test_gateway_marks_its_answers(artifact: Path, simulated: Artifact) -> None:
    plain, marked = (gateway_config(root, grpc="127.0.0.1:1", port=1) for root in (artifact, simulated.root))
    assert plain.fingerprint.startswith("trtspec-")
    assert marked.fingerprint.startswith("simulated-")


def test_bench_reports_the_requested_and_the_measured_length(artifact: Path, trtspec: Run) -> None:
    done = trtspec("bench", artifact, "--simulate-acceptance", "0.9,0.6,0.3", *FEW, "--json")
    assert done.code == 0, done.err
    document = done.document
    assert document["simulated"]["acceptance_rates"] == [0.9, 0.6, 0.3]
    assert document["simulated"]["mean_accepted_len"] == pytest.approx(2.8)
    assert document["simulated"]["measured"] == pytest.approx(2.8, abs=0.6)  # 3 texts of 24 tokens
    assert document["acceptance"] == "simulated"
    assert "verdict" not in document
    assert "identical_texts" not in document
    shown = trtspec("bench", artifact, "--simulate-acceptance", "2", *FEW)
    assert "SIMULATED acceptance: 2.00 tokens per step were requested, " in shown.out
    assert "the texts are not the target's" in shown.out


def test_results_are_neither_saved_nor_accepted_as_evidence(artifact: Path, trtspec: Run) -> None:
    done = trtspec("bench", artifact, "--simulate-acceptance", "2", *FEW, "--json")
    assert list_documents(artifact, target_sha256(load_manifest(artifact))) == []
    Path("simulated.json").write_text(done.out)
    with pytest.raises(TrtspecError, match="measured with simulated acceptance"):
        read_document(Path("simulated.json"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--gates",), "--simulate-acceptance cannot be combined with --gates"),
        (("--baseline", "other"), "--simulate-acceptance cannot be combined with --gates"),
        (("--temperature", "1"), "--temperature requires --concurrency or --rate"),
        (("--simulate-out", "out"), "embedded has no server of its own with simulated acceptance"),
    ],
)
def test_bench_rejects_options_without_meaning(
    artifact: Path, trtspec: Run, options: tuple[str, ...], message: str
) -> None:
    refused = trtspec("bench", artifact, "--simulate-acceptance", "2", *options)
    assert (refused.code, message in refused.err) == (1, True), refused.err


def test_bench_simulates_only_artifacts_that_speculate(recipe: Path, trtspec: Run) -> None:
    refused = trtspec("bench", "http://127.0.0.1:1", "--simulate-acceptance", "2")
    assert (refused.code, "--simulate-acceptance requires an artifact" in refused.err) == (1, True)
    refused = trtspec("bench", "http://127.0.0.1:1", "--simulate-out", "out")
    assert (refused.code, "--simulate-out requires --simulate-acceptance" in refused.err) == (1, True)
    document = yaml.safe_load(recipe.read_text())
    recipe.write_text(yaml.safe_dump(document | {"speculation": {"method": "none"}}))
    built = trtspec("build", recipe, "--out", "build/alone")
    assert built.code == 0, built.err
    refused = trtspec("bench", "build/alone", "--simulate-acceptance", "2")
    assert (refused.code, "the artifact does not speculate" in refused.err) == (1, True)


ENVIRONMENT = {
    "sglang": {
        "SGLANG_SIMULATE_ACC_LEN": "3",
        "SGLANG_SIMULATE_ACC_METHOD": "match-expected",
        "SGLANG_SIMULATE_ACC_TOKEN_MODE": "real-draft-token",
    },
    "llmapi": {"TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS": "2"},
    "vllm": {},
}


@pytest.mark.parametrize("backend", ENVIRONMENT)
def test_engine_gets_a_marked_script_on_loopback(recipe: Path, trtspec: Run, tmp_path: Path, backend: str) -> None:
    built = trtspec("build", recipe, "--set", f"engine.backend={backend}")
    assert built.code == 0, built.err
    done = trtspec("bench", "build/tiny", "--simulate-acceptance", "3", "--simulate-out", "out", "--json")
    assert done.code == 0, done.err
    assert done.document["simulated"]["mean_accepted_len"] == 3.0
    assert "simulated acceptance" in Path("out/SIMULATION.md").read_text()
    script = Path("out/serve.sh").read_text()
    for name, value in ENVIRONMENT[backend].items():
        assert f"export {name}={value}\n" in script
    assert ("simulated-tiny" in script) is (backend != "llmapi")  # TensorRT-LLM 1.2 takes no name
    refused = trtspec("deploy", "out")
    assert (refused.code, "not an artifact: manifest.json is missing" in refused.err) == (1, True)
    # run the script with programs that print their arguments
    programs = tmp_path / "bin"
    programs.mkdir()
    for program in ("vllm", "python3", "trtllm-serve"):
        (programs / program).write_text('#!/bin/sh\nfor word in "$@"; do echo "$word"; done\n')
        (programs / program).chmod(0o755)
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}"}
    ran = subprocess.run(
        ["sh", "out/serve.sh", "--port", "8123"],
        capture_output=True,
        text=True,
        env=environment,
        timeout=60,
        check=True,
    )
    words = ran.stdout.splitlines()
    assert words[-2:] == ["--port", "8123"]
    assert [word for word in words if "host" in word] == ["--host=127.0.0.1"]
    if backend == "llmapi":
        (options,) = [word for word in words if word.startswith("--extra_llm_api_options=")]
        assert Path(options.partition("=")[2]) == Path("out/llm.yaml").resolve()
        assert Path("out/llm.yaml").is_file()
    if backend == "vllm":
        (option,) = [word for word in words if word.startswith("--speculative-config=")]
        speculation = json.loads(option.partition("=")[2])
        assert speculation["rejection_sample_method"] == "synthetic"
        assert speculation["synthetic_acceptance_rates"] == [1.0, 1.0, 0.0]


def simulate(backend: str, server: StandaloneServer, rates: tuple[float, ...], version: str) -> StandaloneServer:
    hook = find_backend(backend).serving().simulate
    assert hook is not None
    return hook(server, rates, version)


def test_versions_without_forced_acceptance_are_rejected() -> None:
    vllm = StandaloneServer("vllm", ("vllm", "serve", "m", '--speculative-config={"method": "ngram"}'), ())
    with pytest.raises(DeployError, match=r"vLLM 0.19.1 does not simulate acceptance by position"):
        simulate("vllm", vllm, (1.0, 0.5), "0.19.1")
    assert "synthetic" in simulate("vllm", vllm, (1.0, 0.5), "0.20.0").serve[-1]


@pytest.mark.parametrize(
    ("version", "kind", "rates", "forced"),
    [
        ("1.2.1", "Eagle3", (1.0, 1.0, 0.0), "2"),
        ("1.2.1", "Eagle3", (1.0, 0.5, 0.0), ""),
        ("1.3.0rc29", "Eagle3", (0.9, 0.5, 0.3), "1.7"),
        ("1.3.0rc29", "NGram", (0.9, 0.5, 0.3), ""),
    ],
)
def test_llm_api_forces_accepted_draft_tokens(version: str, kind: str, rates: tuple[float, ...], forced: str) -> None:
    """The variable excludes the target's own token, and older versions parse it as an integer."""
    text = json.dumps({"speculative_config": {"decoding_type": kind}})
    server = StandaloneServer("trtllm", ("trtllm-serve", "m"), (), {"llm.yaml": text})
    if not forced:
        with pytest.raises(DeployError, match="forces whole numbers of tokens"):
            simulate("llmapi", server, rates, version)
        return
    found = simulate("llmapi", server, rates, version).environment
    assert found == {"TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS": forced}


def test_sglang_trees_get_fixed_tokens() -> None:
    """SGLang rejects real draft tokens with more than one branch."""
    tree = StandaloneServer("sglang", ("python3", "--speculative-eagle-topk=4"), ())
    forced = simulate("sglang", tree, (0.9, 0.5), "0.5.23").environment
    assert forced["SGLANG_SIMULATE_ACC_TOKEN_MODE"] == "fixed"
    assert forced["SGLANG_SIMULATE_ACC_LEN"] == "2.4"


def post(url: str, body: dict[str, Any]) -> dict[str, Any]:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        found: dict[str, Any] = json.load(answer)
    return found


def read(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as answer:
        text: str = answer.read().decode()
    return text


@pytest.mark.triton
@pytest.mark.slow
def test_private_server_is_marked_and_ends_with_the_test(artifact: Path, trtspec: Run) -> None:
    need_server()
    prompt = {"prompt": "once upon", "max_tokens": 48, "temperature": 0, "ignore_eos": True}
    with simulated_server(artifact, read_artifact(artifact), RATES, lambda state, what: None) as name:
        document = status(name)
        assert (name, document["host"]) == ("simulated-tiny", "127.0.0.1")
        assert DeploymentJournal(name).read_existing().method == "draft_target (simulated)"
        openai = document["endpoints"]["openai"]
        assert [each["id"] for each in json.loads(read(f"{openai}/models"))["data"]] == ["simulated-tiny"]
        answer = post(f"{openai}/completions", {"model": name, **prompt})
        assert answer["model"] == "simulated-tiny"
        assert answer["system_fingerprint"].startswith("simulated-")
        client = Client.at(document["endpoints"]["http"], timeout_s=30)
        asked = {"text_input": "once upon", "max_tokens": 48}
        simulated = client.generate(asked)["text_output"]
        alone = client.generate(asked | {"num_draft_tokens": 0})["text_output"]
        assert simulated != alone
        metrics = read(document["endpoints"]["metrics"])
        assert 'method="draft_target (simulated)"' in metrics
        assert 'method="draft_target"' not in metrics
    assert trtspec("ps", "--json").document["deployments"] == []
    with deployed(trtspec, artifact, "--skip-gate", "lossless") as (document, client):
        # no request field forces acceptance on a deployed server
        url = f"{document['endpoints']['openai']}/completions"
        text = post(url, {"model": "tiny", **prompt})["choices"][0]["text"]
        for forced in ({"simulated_acceptance": [1, 1, 1]}, {"synthetic_acceptance_rates": [1, 1, 1]}):
            with suppress(HTTPError):  # rejected; otherwise without effect
                assert post(url, {"model": "tiny", **prompt, **forced})["choices"][0]["text"] == text
        assert client.generate(asked)["text_output"] == alone


@pytest.mark.triton
@pytest.mark.slow
def test_load_is_measured_on_the_private_server(artifact: Path, trtspec: Run) -> None:
    need_server()
    load = ("--concurrency", "2", "--requests", 4, "--runs", 1, "--max-rounds", 1, "--max-tokens", 32)
    done = trtspec("bench", artifact, "--simulate-acceptance", "0.9,0.6,0.3", *load, "--json")
    assert done.code == 0, done.err
    document = done.document
    assert document["simulated"]["measured"] == pytest.approx(2.8, abs=0.6)
    assert document["deployment"]["name"] == "simulated-tiny"
    assert "verdict" not in document
    (point,) = document["points"]
    assert point["identical_texts"] is None
    assert point["arms"]["served"]["output_tokens"] == 4 * 32
    assert trtspec("ps", "--json").document["deployments"] == []
    assert list_documents(artifact, target_sha256(load_manifest(artifact))) == []
