# SPDX-License-Identifier: Apache-2.0
"""`bench`: its counts in this process and from a server's responses."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.conftest import Run
from trtspec.bench.bench import measure_server
from trtspec.bench.documents import manifest_sha256
from trtspec.bench.speedup import BenchComparison, BenchSide
from trtspec.engine.generation.request import Stats
from trtspec.serving.triton.client import Client

BEGINNINGS = r"(It pays|Do not ship this draft|Not decided): .*\d\.\d\d times"  # depends on the machine's current speed
RUNS = ("--runs", 3, "--max-tokens", 6)


class Handler(BaseHTTPRequestHandler):
    """A fake ensemble: returns `max_tokens` tokens and reports two of three drafted tokens as accepted."""

    asked: ClassVar[list[dict[str, Any]]] = []
    answer: ClassVar[dict[str, Any]] = {}
    refuses: ClassVar[str] = ""

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.asked.append({"path": self.path, **request})
        drafts = request.get("num_draft_tokens") != 0
        answer = {
            "text_output": f"{request['text_input']} and so on",
            "num_output_tokens": request["max_tokens"],
            "total_draft_tokens": 3 if drafts else 0,
            "total_accepted_draft_tokens": 2 if drafts else 0,
            **self.answer,
        }
        refused = self.refuses in request
        answer = {"error": f"{self.refuses} is not supported"} if refused else answer
        body = json.dumps({key: value for key, value in answer.items() if value is not None}).encode()
        self.send_response(400 if refused else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Yield the address of a fake trtspec server."""
    monkeypatch.setattr(Handler, "asked", [])
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join(30)
    server.server_close()


def test_comparison_has_rates_medians_and_total_speedup() -> None:
    stats = Stats(9, 60, drafted=30, accepted=20, steps=15) + Stats(1, 0, drafted=10, accepted=10, steps=5)
    assert (stats.prompt_tokens, stats.new_tokens, stats.acceptance_rate, stats.mean_accepted_len) == (
        10,
        60,
        0.75,
        2.5,
    )
    assert BenchSide([30.0, 10.0, 20.0], stats).median == 20.0
    sides = BenchSide(seconds=12.0), BenchSide(seconds=4.0)
    speedup = BenchComparison(1, 1, "exact", *sides, ratios=[2.0, 90.0, 2.5]).speedup
    assert (speedup.median, speedup.total, speedup.samples) == (2.5, 3.0, 1)


def test_interval_counts_prompts_instead_of_runs() -> None:
    """Five runs of eight prompts give the interval of one run, with each prompt's median over runs."""
    sides = BenchSide(seconds=12.0), BenchSide(seconds=4.0)
    once = [1.0, 1.2, 1.4, 1.6, 1.8, 2.0, 2.2, 2.4]
    first, again = (BenchComparison(8, 1, "exact", *sides, ratios=once * runs).speedup for runs in (1, 5))
    assert again == first
    noisy = [*once, *[9.0] * 8, *once]
    assert BenchComparison(8, 1, "exact", *sides, ratios=noisy).speedup == first
    few = BenchComparison(4, 1, "exact", *sides, ratios=[2.0, 2.1, 2.2, 2.3] * 5)
    assert (few.runs, few.speedup.samples, few.speedup.reaches(1.5)) == (5, 4, None)


def test_speedup_is_speculative_speed_over_baseline_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])

    class Fake:
        def generate(self, request: dict[str, Any]) -> dict[str, Any]:
            clock[0] += 6.0 if "num_draft_tokens" in request else 2.0  # the baseline is the slow one
            counts = {"num_output_tokens": 12, "total_draft_tokens": 0, "total_accepted_draft_tokens": 0}
            return {"text_output": "x", **counts}

    comparison = measure_server(Fake(), ["one", "two", "three"], 12, 2)  # type: ignore[arg-type]
    assert (comparison.speedup.median, comparison.speedup.total) == (3.0, 3.0)
    assert comparison.baseline.tokens_per_s == [2.0, 2.0]
    assert comparison.speculative.tokens_per_s == [6.0, 6.0]


def test_baseline_can_be_another_server_without_draft_counts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: clock[0])

    class Fake:
        def __init__(self, seconds: float) -> None:
            self.seconds = seconds

        def generate(self, request: dict[str, Any]) -> dict[str, Any]:
            assert "num_draft_tokens" not in request
            clock[0] += self.seconds
            return {"text_output": "x", "num_output_tokens": 12}

    comparison = measure_server(Fake(2.0), ["one", "two"], 12, 1, baseline=Fake(5.0))  # type: ignore[arg-type]
    assert comparison.speedup.median == 2.5
    assert comparison.speculative.stats.drafted == 0


def test_baseline_option_requires_two_servers(trtspec: Run, workplace: Path) -> None:
    refused = trtspec("bench", "http://127.0.0.1:1", "--baseline", "./artifact")
    assert refused.code == 1
    assert "--baseline requires two servers" in refused.err


@pytest.mark.integration
def test_bench_of_an_artifact_has_samples_and_a_verdict(artifact: Path, trtspec: Run) -> None:
    done = trtspec("bench", "build/tiny", *RUNS, "--json")
    assert done.code == 0
    document = done.document
    assert (document["prompts"], document["max_tokens"], document["identical_texts"]) == (3, 6, 3)
    for side in ("baseline", "speculative"):
        samples = document[side]["tokens_per_s"]
        assert len(samples) == 3
        assert document[side]["median_tokens_per_s"] == sorted(samples)[1]
    assert document["baseline"]["acceptance_rate"] == 0.0
    assert document["baseline"]["mean_accepted_len"] == 1.0
    assert document["speedup"] > 0
    assert done.err == ""
    shown = trtspec("bench", "build/tiny", *RUNS)
    verdict, title, _ = shown.out.split("\n", 2)
    assert title == "build/tiny: 3 prompts, 6 tokens each"
    assert re.match(BEGINNINGS, verdict)
    assert re.match(BEGINNINGS, document["verdict"])
    assert document["decision"] in ("pays", "do_not_ship", "undecided")
    assert (document["name"], document["manifest"]) == ("tiny", manifest_sha256(artifact))
    assert "identical text: yes (3 of 3)" in shown.out


def test_bench_of_a_server_alternates_arms_and_reports_acceptance(server: str, workplace: Path, trtspec: Run) -> None:
    prompts = workplace / "two.jsonl"
    prompts.write_text('{"prompt": "one"}\n{"prompt": "two"}\n')
    done = trtspec("bench", server, "--prompts", prompts, *RUNS, "--json")
    assert done.code == 0
    document = done.document
    assert (document["prompts"], document["identical_texts"]) == (2, 2)
    assert document["baseline"]["acceptance_rate"] == 0.0
    assert document["speculative"]["acceptance_rate"] == 0.6667
    # of 6 tokens, one is from the prefill and two from drafts: three steps
    assert document["speculative"]["mean_accepted_len"] == 1.667
    assert done.err == ""
    drafts_on_request, warm_up, *asked = Handler.asked
    assert drafts_on_request["num_draft_tokens"] == 0
    assert warm_up["text_input"] == "one"
    assert {each["path"] for each in asked} == {"/v2/models/ensemble/generate"}
    # alternating between with and without speculation, each first equally often
    assert [(each["text_input"], each.get("num_draft_tokens")) for each in asked] == 3 * [
        ("one", None), ("one", 0), ("two", 0), ("two", None),
    ]  # fmt: skip
    assert (
        f"curl -s {server}/v2/models/ensemble/generate -d" in trtspec("bench", server, *RUNS, "--prompts", prompts).out
    )


def test_server_that_cannot_switch_drafting_off_needs_a_baseline(
    server: str, trtspec: Run, workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Handler, "refuses", "num_draft_tokens")
    failed = trtspec("bench", server)
    assert (failed.code, failed.err) == (
        1,
        "error: no baseline to compare with\nhint: the engine cannot switch drafting off; give a server without "
        "speculation with --baseline NAME-or-URL\n",
    )
    assert len(Handler.asked) == 1
    assert trtspec("bench", server, "--baseline", server, *RUNS).code == 0


def test_differing_text_is_not_counted_as_identical(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    client = Client.at(server)
    generate = Client.generate

    def with_a_slip(self: Client, request: dict[str, Any]) -> dict[str, Any]:
        answer = generate(self, request)
        slips = request["text_input"] == "two" and "num_draft_tokens" not in request
        return answer | ({"text_output": "oops"} if slips else {})

    monkeypatch.setattr(Client, "generate", with_a_slip)
    assert measure_server(client, ["one", "two", "three"], 4, 2).identical_texts == 2


def test_server_without_draft_counts_is_rejected(
    server: str, workplace: Path, trtspec: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Handler, "answer", {"total_draft_tokens": None})
    failed = trtspec("bench", server)
    assert (failed.code, failed.err) == (
        1,
        "error: the server's responses lack total_draft_tokens\nhint: serve an artifact built by trtspec\n",
    )


def test_invalid_or_unreachable_address_is_an_error(workplace: Path, trtspec: Run) -> None:
    for address in ("https://localhost:8000", "http://localhost", "http://"):
        failed = trtspec("bench", address)
        assert failed.code == 1
        assert f"{address!r} is not a server's address" in failed.err
    failed = trtspec("bench", "http://127.0.0.1:1")
    assert failed.code == 1
    assert "error: http://127.0.0.1:1: the server cannot be reached: " in failed.err
    assert "no artifact: the directory does not exist" in trtspec("bench", "./nosuch").err
    assert trtspec("bench", "nosuch").code == 1
