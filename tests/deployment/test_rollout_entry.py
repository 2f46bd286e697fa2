# SPDX-License-Identifier: Apache-2.0
"""Gateway clients during rollouts: no request fails, each answer is from one revision, and texts never change."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from tests._support.deployed import deploy_local
from tests.serving.triton.artifact import make_artifact, write_manifest
from trtspec.core.errors import DeployError
from trtspec.core.processes import session_processes, wait_until
from trtspec.deployment import gateway as entry
from trtspec.deployment.base import history, promote, rollback
from trtspec.deployment.journal import DeploymentJournal
from trtspec.deployment.options import DeployOptions
from trtspec.deployment.revision import revision_dir
from trtspec.deployment.rollout import commands
from trtspec.deployment.rollout.state import RolloutPolicy, active_rollout, read_rollout
from trtspec.deployment.targets.local import stop
from trtspec.serving.gateway.config import GatewayConfig
from trtspec.serving.triton.server import find_server

pytestmark = [pytest.mark.triton, pytest.mark.slow]

CLIENTS = 4
BURST = 24  # exceeds the engine's batch size
TOKENS = 48
PAUSE_S = 0.2  # pause after an answer; without it the clients starve the starting server of CPU time
BACK_S = 30.0
PROMPTS = ("abc", "The quick", "0123", "x")


@dataclass
class Load:
    """Responses to clients of a gateway: counts by revision, texts by prompt, and failures."""

    url: str
    answers: Counter[str] = field(default_factory=Counter)
    texts: dict[str, set[str]] = field(default_factory=lambda: {prompt: set() for prompt in PROMPTS})
    failed: list[str] = field(default_factory=list)
    over: bool = False

    def run(self, client: int) -> None:
        asked = client
        while not self.over:
            asked += 1
            prompt, stream = PROMPTS[asked % len(PROMPTS)], asked % 3 > 0
            try:
                text, revisions = self.ask(prompt, stream)
            except HTTPError as error:
                self.failed.append(f"{error.code}: {error.read().decode()}")
                continue
            except Exception as error:
                self.failed.append(repr(error))
                continue
            self.texts[prompt].add(text)
            self.answers[" and ".join(sorted(revisions))] += 1
            time.sleep(PAUSE_S)

    def ask(self, prompt: str, stream: bool) -> tuple[str, set[str]]:
        body = {"model": "tiny", "prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "stream": stream}
        asked = json.dumps(body | {"ignore_eos": True}).encode()
        request = Request(f"{self.url}/completions", asked, {"Content-Type": "application/json"})
        with urlopen(request, timeout=60) as answer:
            raw = answer.read().decode()
        documents = [json.loads(raw)] if not stream else events(raw)
        text = "".join(each["choices"][0]["text"] for each in documents)
        return text, {each["system_fingerprint"] for each in documents}


def events(raw: str) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in raw.split("\n\n") if line]
    assert lines.pop() == "[DONE]", raw[-300:]
    found = [json.loads(line) for line in lines]
    assert [each for each in found if "error" in each] == []
    return found


@contextmanager
def load(url: str, clients: int = CLIENTS) -> Iterator[Load]:
    """Send requests continuously; assert at the end that none failed and that each prompt has one text."""
    found = Load(url)
    with ThreadPoolExecutor(clients) as threads:
        running = [threads.submit(found.run, client) for client in range(clients)]
        try:
            yield found
        finally:
            found.over = True
        for each in running:
            each.result(90)
    assert not found.failed
    assert {prompt: len(texts) for prompt, texts in found.texts.items()} == dict.fromkeys(PROMPTS, 1)
    assert not any(" and " in revision for revision in found.answers)


def patient(configured: Callable[..., GatewayConfig]) -> Callable[..., GatewayConfig]:
    """Let interrupted texts wait as long as a server may take to start on a busy machine."""

    def config(*args: Any) -> GatewayConfig:
        found = configured(*args)
        return replace(found, limits=replace(found.limits, resume_s=90.0, stall_s=120.0))

    return config


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """Return the gateway's address and an artifact with the served target and another drafter."""
    root = tmp_path_factory.mktemp("entry")
    artifacts = [make_artifact(root / name) for name in ("one", "two")]
    for index, artifact in enumerate(artifacts):
        (artifact / "checkpoints" / "draft" / "note").write_text(str(index))
        write_manifest(artifact, "tiny", openai=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRTSPEC_STATE", str(root / "state"))
        patch.setattr(
            commands,
            "rollout_policy",
            lambda recipe, shares: RolloutPolicy(tuple(shares), 1.0, 6, max_latency_ratio=20),
        )
        patch.setattr(entry, "revision_config", patient(entry.revision_config))
        try:
            find_server()
        except DeployError as error:
            pytest.skip(str(error))
        options = DeployOptions(timeout_s=120, detach=True)
        url = deploy_local(artifacts[0], options).as_dict()["endpoints"]["openai"]
        yield url, artifacts[1]
        stop("tiny", timeout_s=0)


def roll(artifact: Path, *shares: int, shadow: int | None = None) -> dict[str, Any]:
    skip = ("lossless", "min_acceptance", "min_speedup", "quantized_parity")
    options = DeployOptions(shares=shares, shadow=shadow, skip_gates=skip, timeout_s=120)
    return deploy_local(artifact, options).as_dict()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_canary_crash_with_half_of_the_traffic_loses_no_request(live: tuple[str, Path], number: int) -> None:
    url, artifact = live
    journal = DeploymentJournal("tiny")
    before = journal.read_existing()
    with load(url) as found:
        revision = roll(artifact, 50)["rollout"]["revision"]
        assert wait_until(lambda: len(found.answers) == 2, 30), "both revisions answer"
        place = str(revision_dir(journal, revision)).encode()
        pids = session_processes(before.pid, before.started)
        (server,) = [pid for pid in pids if is_server(pid, place)]
        os.kill(server, number)
        assert wait_until(lambda: not active_rollout(journal, journal.read_existing()), BACK_S)
        answered = found.answers.total()
        assert wait_until(lambda: found.answers.total() > answered + CLIENTS, 60)
    rollout = read_rollout(journal)
    assert rollout is not None
    assert (rollout.state, journal.read_existing()) == ("rolled-back", before)


def is_server(pid: int, place: bytes) -> bool:
    arguments = Path(f"/proc/{pid}/cmdline").read_bytes()
    return place in arguments and arguments.split(b"\0")[0].endswith(b"tritonserver")


def test_server_crash_loses_no_started_stream(live: tuple[str, Path]) -> None:
    """Greedy texts resume once the server is back; new requests get 503 until then."""
    url, _ = live
    journal = DeploymentJournal("tiny")
    record = journal.read_existing()
    place = str(revision_dir(journal, record.revision)).encode()
    wanted, _ = Load(url).ask(PROMPTS[0], True)
    body = {"model": "tiny", "prompt": PROMPTS[0], "max_tokens": TOKENS, "temperature": 0, "stream": True}
    asked = json.dumps(body | {"ignore_eos": True}).encode()
    with urlopen(Request(f"{url}/completions", asked, {"Content-Type": "application/json"}), timeout=150) as answer:
        first = answer.readline()
        (server,) = [pid for pid in session_processes(record.pid, record.started) if is_server(pid, place)]
        os.kill(server, signal.SIGKILL)
        rest = events((first + answer.read()).decode())
    assert "".join(each["choices"][0]["text"] for each in rest) == wanted
    assert wait_until(lambda: is_back(journal, record.restarts), 120), (
        "the text may have been complete before the server died"
    )
    assert wait_until(lambda: answers(url), BACK_S)


def is_back(journal: DeploymentJournal, restarts: int) -> bool:
    record = journal.read_existing()
    return record.restarts > restarts and record.state == "live"


def answers(url: str) -> bool:
    try:
        return bool(Load(url).ask(PROMPTS[0], stream=False))
    except HTTPError:
        return False


def test_traffic_shares_match_the_configured_ones_until_promotion(live: tuple[str, Path]) -> None:
    url, artifact = live
    with load(url) as found:
        roll(artifact, 25)
        found.answers.clear()
        assert wait_until(lambda: found.answers.total() >= 40, 120)
        shares = sorted(found.answers.values())
        assert 0.15 < shares[0] / sum(shares) < 0.35
        assert promote("tiny")["rollout"]["state"] == "promoted"
        found.answers.clear()
        assert wait_until(lambda: found.answers.total() >= CLIENTS + 20, 120)
        late = Counter(found.answers)
    assert late.most_common(1)[0][1] >= 20, "all requests go to the new revision, except those in flight"


def test_mirrored_requests_are_compared_without_affecting_clients(live: tuple[str, Path]) -> None:
    url, _ = live
    with load(url) as found:
        held = roll(other_than_served(live), 10, shadow=50)["rollout"]
        assert wait_until(lambda: shadowed()["compared"] >= 12, 120)
        assert (found.answers.total() > 0, held["share"]) == (True, 10)
        status = rollback("tiny", lambda state, what: None)["rollout"]
    came_to = status["shadow"]
    assert (came_to["share"], came_to["failed"], came_to["different"]) == (50, 0, 0)
    assert came_to["sent"] >= came_to["compared"] >= 12
    assert came_to["latency_ratio"] > 0
    noted = [entry for entry in history("tiny") if entry["revision"] == held["revision"]]
    assert [entry["state"] for entry in noted][3:] == ["smoke", "shadow", "canary", "holding", "rolled-back"]
    assert noted[-1]["detail"] == f"requested by command; mirrored: {came_to['verdict']}"


def shadowed() -> dict[str, Any]:
    rollout = read_rollout(DeploymentJournal("tiny"))
    assert rollout is not None
    return {"compared": 0} | rollout.shadow


def other_than_served(live: tuple[str, Path]) -> Path:
    """Return the artifact that is not served; the two are in the same directory."""
    serves = Path(DeploymentJournal("tiny").read_existing().artifact).name
    return live[1].with_name("one" if serves == "two" else "two")


def test_rollouts_before_during_and_after_a_burst_are_promoted(live: tuple[str, Path]) -> None:
    """A rollout before, during and after a burst: every request gets a text of one revision."""
    url, _ = live
    with load(url, 1) as quiet:
        for clients in (0, BURST, 0):
            with load(url, clients) if clients else nullcontext(quiet) as found:
                assert roll(other_than_served(live), 50, 100)["rollout"]["state"] == "promoted"
                assert found.answers.total() > clients
