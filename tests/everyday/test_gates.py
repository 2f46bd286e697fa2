# SPDX-License-Identifier: Apache-2.0
"""Gates of engines in another process: evaluated on their server, by `bench --gates` and before it is live."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Run
from trtspec.bench.verify import ensure_gates
from trtspec.core.errors import GateNotMet
from trtspec.deployment.journal import DeploymentJournal
from trtspec.deployment.options import DeployOptions
from trtspec.store.artifact import Artifact, manifest_sha256

FEW = ("--runs", 1, "--max-tokens", 6)


@dataclass
class Server:
    """Responds like the ensemble of an engine; with `slip`, speculation changes the text."""

    url: str = ""
    slip: str = ""
    counts: bool = True
    obeys: bool = True  # accepts num_draft_tokens
    asked: list[dict[str, Any]] = field(default_factory=list)

    def answer(self, request: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        self.asked.append(request)
        drafts = request.get("num_draft_tokens") != 0
        if not drafts and not self.obeys:
            return 400, {"error": "num_draft_tokens is not supported by this engine"}
        counts = {"total_draft_tokens": 3 * drafts, "total_accepted_draft_tokens": 2 * drafts} if self.counts else {}
        text = request["text_input"] + (self.slip if drafts else "")
        return 200, {"text_output": text, "num_output_tokens": request["max_tokens"], **counts}


@pytest.fixture
def server() -> Iterator[Server]:
    """A server double that each test may change."""
    state = Server()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            code, answer = state.answer(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            body = json.dumps(answer).encode()
            self.send_response(code)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    served = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    state.url = f"http://127.0.0.1:{served.server_port}"
    yield state
    served.shutdown()
    thread.join(30)
    served.server_close()


@dataclass
class Target:
    """A deployment target whose server already runs; `live` is true once a deployment went live."""

    render, rollouts = None, False

    server: Server
    artifact: Path
    live: list[str] = field(default_factory=list)

    def deploy(self, journal: DeploymentJournal, artifact: Artifact, options: DeployOptions) -> Target:
        if options.before_live:
            options.before_live(self.server.url)
        self.live.append(self.server.url)
        return self

    def as_dict(self) -> dict[str, Any]:
        return {"format_version": 1, "name": "tiny", "state": "live", "endpoints": {"http": self.server.url}, "pid": 7}

    def status(self, name: str) -> dict[str, Any]:
        return self.as_dict() | {"artifact": str(self.artifact), "manifest": manifest_sha256(self.artifact)}


@pytest.fixture
def built(recipe: Path, trtspec: Run) -> Any:
    """Build an artifact for an engine in another process, with these gates; return its path."""
    recipe.write_text(recipe.read_text().replace("engine:\n", "engine:\n  backend: vllm\n  gpu: h100\n"))

    def build(**gates: float) -> Path:
        sets = [word for key, limit in gates.items() for word in ("--set", f"gates.{key}={limit}")]
        assert trtspec("build", recipe, *sets).code == 0
        return recipe.parent / "build" / "tiny"

    return build


@pytest.fixture
def serve(server: Server, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Make the server serve an artifact, with the deployment name "tiny"."""

    def serve(artifact: Path) -> Target:
        target = Target(server, artifact)
        monkeypatch.setattr("trtspec.deployment.base.find_target", lambda name: target)
        monkeypatch.setattr("trtspec.deployment.base.deployment_target", lambda name: target)
        return target

    return serve


def check_results(document: dict[str, Any]) -> dict[str, bool]:
    return {check["name"]: check["ok"] for check in document["checks"]}


@pytest.mark.slow
def test_bench_gates_fail_if_the_server_misses_a_limit(built: Any, serve: Any, trtspec: Run) -> None:
    artifact = built(min_speedup=99.0, min_acceptance=0.5)
    serve(artifact)
    assert trtspec("bench", "tiny", *FEW).code == 0
    done = trtspec("bench", "tiny", "--gates", *FEW, "--json")
    assert done.code == 112
    assert check_results(done.document) == {"lossless": True, "min_acceptance": True, "min_speedup": False}
    assert done.document["speedup"] > 0
    shown = trtspec("bench", "tiny", "--gates", *FEW)
    assert (shown.code, "tiny: gates FAILED" in shown.out + shown.err) == (112, True)
    report = json.loads((artifact / "reports" / "verify.json").read_text())
    assert {check["measured_by"] for check in report["checks"]} == {"server"}
    with pytest.raises(GateNotMet, match="min_speedup"):
        ensure_gates(artifact)


@pytest.mark.slow
def test_differing_text_fails_the_lossless_gate(built: Any, serve: Any, server: Server, trtspec: Run) -> None:
    server.slip = "!"
    serve(built())
    assert trtspec("bench", "tiny", "--gates", *FEW).code == 110
    assert trtspec("bench", "tiny", "--gates", "--skip-gate", "lossless", *FEW).code == 0
    assert trtspec("bench", "tiny", *FEW).code == 0


@pytest.mark.slow
def test_bench_report_satisfies_the_gates_of_deploy(built: Any, serve: Any, server: Server, trtspec: Run) -> None:
    artifact = built(min_speedup=0.001)
    target = serve(artifact)
    assert ensure_gates(artifact) is False
    assert trtspec("verify", artifact).code == 0
    assert ensure_gates(artifact) is False, "verify checks files, but runs no engine"
    assert trtspec("bench", "tiny", "--gates", *FEW).code == 0
    assert ensure_gates(artifact) is True
    assert trtspec("verify", artifact).code == 0
    assert ensure_gates(artifact) is True, "verify keeps the results of the server"
    server.asked.clear()
    assert trtspec("deploy", artifact, "--detach").code == 0
    assert (target.live, server.asked) == ([server.url], [])


@pytest.mark.slow
def test_skipped_gate_is_not_settled(built: Any, serve: Any, trtspec: Run) -> None:
    artifact = built(min_speedup=99.0)
    serve(artifact)
    done = trtspec("bench", "tiny", "--gates", "--skip-gate", "min_speedup", *FEW, "--json")
    assert done.code == 0
    assert [(each["name"], each["reason"]) for each in done.document["left_out"]] == [("min_speedup", "request")]
    shown = trtspec("bench", "tiny", "--gates", "--skip-gate", "min_speedup", *FEW)
    assert "min_speedup: skipped" in shown.out + shown.err
    assert ensure_gates(artifact) is False
    assert ensure_gates(artifact, skip=["min_speedup"]) is True


@pytest.mark.slow
def test_deploy_measures_gates_before_its_server_is_live(built: Any, serve: Any, server: Server, trtspec: Run) -> None:
    artifact = built(min_speedup=99.0)
    target = serve(artifact)
    refused = trtspec("deploy", artifact, "--detach")
    assert (refused.code, target.live) == (112, [])
    assert "min_speedup: " in refused.err
    announced = "covers its gates; measuring them on its server before it is live: "
    assert announced in refused.err
    assert refused.err.index(announced) < refused.err.index("min_speedup: ")
    assert f"trtspec verify {artifact}; to skip one: --skip-gate " in refused.err
    assert {each["max_tokens"] for each in server.asked} == {1, 32}
    assert not (artifact / "reports").exists()
    server.slip = "!"
    skipping = ("--skip-gate", "min_speedup")
    assert trtspec("deploy", artifact, "--detach", *skipping).code == 110
    server.slip = ""
    done = trtspec("deploy", artifact, "--detach", *skipping, "--json")
    assert (done.code, target.live) == (0, [server.url])
    assert [(each["name"], each["reason"]) for each in done.document["left_out"]] == [("min_speedup", "request")]
    assert "min_speedup: skipped" in done.err


@pytest.mark.slow
def test_engine_that_cannot_disable_drafting_needs_a_baseline(
    built: Any, serve: Any, server: Server, trtspec: Run
) -> None:
    server.obeys, server.counts = False, False
    artifact = built(min_acceptance=0.5)
    target = serve(artifact)
    refused = trtspec("bench", "tiny", "--gates", *FEW)
    assert refused.code == 1
    assert "the gates need a baseline" in refused.err
    assert "--baseline NAME-or-URL" in refused.err
    done = trtspec("deploy", artifact, "--detach")
    assert (done.code, len(target.live)) == (0, 1)
    assert "lossless: not measured" in done.err
    assert "min_acceptance: not measured" in done.err
    measured = trtspec("bench", "tiny", "--gates", "--baseline", server.url, *FEW, "--json")
    assert (measured.code, check_results(measured.document)) == (0, {"lossless": True})
    assert ensure_gates(artifact) is True


@pytest.mark.slow
def test_unmeasurable_speedup_gate_is_not_met(built: Any, serve: Any, server: Server, trtspec: Run) -> None:
    server.obeys = False
    artifact = built(min_speedup=0.001)
    target = serve(artifact)
    refused = trtspec("deploy", artifact, "--detach")
    assert (refused.code, target.live) == (112, [])
    assert "min_speedup: cannot be measured" in refused.err
    assert trtspec("deploy", artifact, "--detach", "--baseline", server.url).code == 0


@pytest.mark.slow
def test_gates_require_the_served_artifact(built: Any, serve: Any, server: Server, trtspec: Run) -> None:
    artifact = built()
    serve(artifact).status = lambda name: {
        "endpoints": {"http": server.url},
        "artifact": str(artifact),
        "manifest": "0",
    }
    refused = trtspec("bench", "tiny", "--gates", *FEW)
    assert (refused.code, "rebuilt after it was deployed" in refused.err) == (1, True)
    refused = trtspec("bench", server.url, "--gates", *FEW)
    assert (refused.code, "pass the deployment's name" in refused.err) == (1, True)
    refused = trtspec("bench", artifact, "--gates", *FEW)
    assert (refused.code, "runs in a server; benchmark the deployment" in refused.err) == (1, True)
    refused = trtspec("bench", "tiny", "--skip-gate", "lossless")
    assert (refused.code, "add --gates" in refused.err) == (1, True)


@pytest.mark.integration
def test_embedded_artifact_gates_are_measured_in_process(recipe: Path, trtspec: Run) -> None:
    assert trtspec("build", recipe, "--set", "gates.min_acceptance=0.99").code == 0
    done = trtspec("bench", "build/tiny", "--gates", *FEW, "--json")
    assert (done.code, check_results(done.document)) == (112, {"lossless": True, "min_acceptance": False})
    assert trtspec("deploy", "build/tiny").code == 112
    with pytest.raises(GateNotMet, match="min_acceptance"):
        ensure_gates(Path("build/tiny"))
    assert ensure_gates(Path("build/tiny"), skip=["min_acceptance"]) is True


def test_artifact_without_speculation_has_no_gates_to_measure(
    recipe: Path, serve: Any, server: Server, built: Any, trtspec: Run
) -> None:
    recipe.write_text(re.sub(r"(?m)^speculation:\n( .*\n)+", "", recipe.read_text()))
    server.obeys = False
    target = serve(artifact := built())
    refused = trtspec("bench", "tiny", "--gates", *FEW)
    assert (refused.code, "does not speculate, so its gates cannot be measured" in refused.err) == (1, True)
    assert trtspec("deploy", artifact, "--detach").code == 0
    assert target.live == [server.url]
