# SPDX-License-Identifier: Apache-2.0
"""The soak test detects failures, reports them with its exit code and keeps its results; a short run passes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from benchmarks.soak import __main__ as command
from benchmarks.soak import asks
from benchmarks.soak.asking import Ask, Entry, Heard, OpenaiEntry, TritonEntry, hear
from benchmarks.soak.draft import Fault, tell
from benchmarks.soak.kept import Restart, kept
from benchmarks.soak.load import Known, Record, Turn, alone, load, summary
from benchmarks.soak.parts import Options, Part, Report
from benchmarks.soak.processes import Memory, Processor, name_of
from benchmarks.soak.rollouts import KINDS
from benchmarks.soak.runs import added, spread
from tests._support.processes import words_of
from tests.serving.triton.artifact import make_echo_artifact
from trtspec.core.errors import DeployError
from trtspec.core.processes import wait_until
from trtspec.deployment.health import SERVER
from trtspec.serving.triton.server import find_server

ROOT = Path(__file__).parents[2]
BOUND_S = 400


class Answers(BaseHTTPRequestHandler):
    """A fake of both APIs that returns the prompt; a leading digit delays the second half by that many seconds."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        text = asked.get("prompt") or asked["text_input"]
        if text == "refuse":
            self.send_error(400)
            return
        self.send_response(200)
        self.end_headers()
        halves = [text[: len(text) // 2], text[len(text) // 2 :]] if asked["stream"] else [text]
        for number, half in enumerate(halves):
            if number and text[0].isdigit():
                time.sleep(float(text[0]))
            self.wfile.write(self.said(half, streamed=asked["stream"], refused=text.endswith("error")))

    def said(self, text: str, *, streamed: bool, refused: bool) -> bytes:
        usage = {"completion_tokens": 7}
        openai = {"choices": [{"text": text}], "usage": usage}
        document = openai if self.path.startswith("/v1") else {"text_output": text, "num_output_tokens": 7}
        if refused:
            document = {"error": "in the midst"}
        return f"data: {json.dumps(document)}\n\n".encode() if streamed else json.dumps(document).encode()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


@pytest.fixture(params=["triton", "openai"])
def entry(url: str, request: pytest.FixtureRequest) -> Entry:
    class Streamed(OpenaiEntry):
        def body(self, ask: Ask, *, stream: bool) -> dict[str, object]:
            return super().body(ask, stream=stream) | {"stream": stream}

    return TritonEntry(url) if request.param == "triton" else Streamed(url, "m")


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
def test_response_has_its_text_and_token_count(entry: Entry, stream: bool) -> None:
    assert hear(entry, Ask("a", "hello", 7), stream=stream, within_s=10) == Heard("hello", 7)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("prompt", "stream", "problem"),
    [
        ("refuse", False, "HTTPException: 400"),
        ("an error", True, "said in the midst"),
        ("9 late", True, "no response within 0 s"),
    ],
)
def test_failed_request_reports_the_problem(entry: Entry, prompt: str, stream: bool, problem: str) -> None:
    heard = hear(entry, Ask("a", prompt, 7), stream=stream, within_s=0.4 if prompt[0] == "9" else 10)
    assert problem in heard.problem


@pytest.mark.slow
def test_disconnected_client_has_the_beginning_of_its_text(entry: Entry) -> None:
    heard = hear(entry, Ask("a", "9 late", 7), stream=True, within_s=10, leave_s=0.3)
    assert (heard.text, heard.problem, heard.left) == ("9 l", "", True)
    assert not heard.differs_from("9 late")
    assert heard.differs_from("another")


def test_unreachable_server_is_reported() -> None:
    assert (
        "ConnectionRefusedError"
        in hear(TritonEntry("http://127.0.0.1:9"), Ask("a", "x", 1), stream=False, within_s=1).problem
    )


@pytest.mark.slow
def test_texts_under_load_are_compared_with_single_requests(entry: Entry) -> None:
    [known] = alone([entry], [Ask("a", "hello", 7)], 10)
    other = Known(entry, Ask("b", "other", 7), "hello")
    with load(
        2, lambda chance: Turn(chance.choice([known, other]), chance.random() < 0.5), seed=1, within_s=10
    ) as records:
        time.sleep(1.5)
    found = summary(records)
    assert found["requests"] > found["different_texts"] > 0 == found["failures"]
    assert found["problems"][0] | {"seconds": 0, "stream": 0} == {
        "entry": entry.name, "ask": "b", "stream": 0, "problem": "another text", "seconds": 0,
        "text": "other", "expected": "hello",
    }  # fmt: skip


def test_rejected_single_request_ends_the_run(entry: Entry) -> None:
    with pytest.raises(SystemExit, match=r"does not serve refused: HTTPException: 400"):
        alone([entry], [Ask("refused", "refuse", 1)], 10)


def test_mixed_requests_cover_every_kind_deterministically() -> None:
    found = asks.mixed(40, 1)
    assert found == asks.mixed(40, 1) != asks.mixed(40, 2)
    assert {ask.name.rpartition("-")[0] for ask in found} == {"greedy", "sampled", "penalized", "sampled-penalized"}
    assert any(ask.stop for ask in found)
    assert all(ask.temperature == 0 and not ask.penalties for ask in asks.greedy(8, 1, 5))


@pytest.mark.parametrize(("growth", "percent"), [(0, 0.0), (3, 3.0)])
def test_memory_growth_compares_the_last_tenth_with_the_third(growth: int, percent: float) -> None:
    memory = Memory(os.getpid(), 100.0)
    memory.samples = [(float(at), {"a": 50_000_000, "b": (50 + growth * (at >= 90)) * 1_000_000}) for at in range(100)]
    found = memory.summary()
    assert (found["growth_percent"], found["third_mb"]) == (pytest.approx(percent), {"a": 50.0, "b": 50.0})


@pytest.mark.slow
def test_processor_and_memory_use_of_this_process_is_sampled() -> None:
    leader = os.getsid(0)
    memory, processor = Memory(leader, 1.0), Processor(leader)
    begun = time.process_time()
    while time.process_time() - begun < 0.2:
        pass
    assert processor.used()["clients"] > 0
    if leader == os.getpid() or (Path(f"/proc/{leader}").exists()):
        memory.sample()
        assert sum(memory.samples[0][1].values()) > 1_000_000


def record(begun: float, ended: float, text: str = "x", problem: str = "") -> Record:
    known = Known(TritonEntry(""), Ask("a", "p", 1), "x")
    return Record(Turn(known, True), Heard(text, problem=problem), begun, ended)


@pytest.mark.parametrize(
    ("records", "faults", "broken"),
    [
        ([record(0, 9)], [Fault("killed", 1.0, 1.5, 4.0, 5.0, 3.0)], set()),
        ([record(0, 9, "y")], [Fault("killed", 1.0, 1.5, 4.0, 5.0, 3.0)], {"every_text_the_same"}),
        ([record(0, 9)], [Fault("killed", 1.0, None, 4.0, 5.0, 3.0)], {"breaker_opens_and_is_counted"}),
        ([record(0, 9)], [Fault("stopped", 1.0, 1.5, 4.0, None, 3.0)], {"heals"}),
        ([record(0, 9)], [Fault("slowed", 1.0, None, 4.0, 5.0)], set()),
        ([record(0, 0.5)], [Fault("slowed", 1.0, None, 4.0, 5.0)], {"in_midst_of_requests"}),
    ],
)
def test_violated_fault_checks_are_reported(records: list[Record], faults: list[Fault], broken: set[str]) -> None:
    report = Report()
    tell(report, faults, records, [])
    assert {name for name, holds in report.checks.items() if not holds} == broken
    assert report.found["kinds"][faults[0].kind]["faults"] == 1


def test_server_exit_is_counted_with_its_affected_requests() -> None:
    """One open request was lost, one had its text, one was sent during the restart; a later one must succeed."""
    fault = Fault("killed", 9.0, None, 19.0, 20.0, ended_server=True)
    met = [record(5, 9.9, problem="reset"), record(6, 9.5), record(12, 12.1, problem="refused")]
    report = Report()
    tell(report, [fault], [*met, record(21, 25)], [Restart("status -6", 10.0, 18.0)])
    assert all(report.checks.values())
    assert report.found["server_ended"] == {
        "times": 1, "reasons": {"status -6": 1}, "seconds_away": [8.0], "open_requests": 2,
        "open_requests_answered": 1, "requests_meanwhile": 1, "requests_meanwhile_answered": 0,
    }  # fmt: skip
    tell(report, [fault], [*met, record(21, 25, problem="late")], [Restart("status -6", 10.0, 18.0)])
    assert not report.checks["every_request_answered_in_time"]


def ending(how: Callable[[Report], None]) -> Part:
    def part(options: Options, report: Report) -> None:
        report.found |= {
            "seen": options.seconds,
            "faults": min(2, options.count),
            "took": {"s": [float(options.seed)]},
        }
        report.checks["one"] = True
        how(report)
        report.complete = True

    return Part(part, "faults")


def fails(report: Report) -> None:
    report.checks["two"] = False


def interrupted(report: Report) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("how", "code", "complete"), [(lambda report: None, 0, True), (fails, 1, True), (interrupted, 130, False)]
)
def test_results_are_written_and_the_exit_code_reflects_the_checks(
    tmp_path: Path, monkeypatch, capsys, how: Callable[[Report], None], code: int, complete: bool
) -> None:
    monkeypatch.setattr(command, "PARTS", {"streams": ending(how)})
    ended, written = soak(tmp_path, monkeypatch, "--faults", "2", "--note", "n")
    [run] = written["runs"]
    assert (ended, run["complete"], written["holds"]) == (code, complete, code != 1)
    assert run["found"]["seen"] == 10.0
    assert run["machine"]["note"] == "n"
    assert json.loads(capsys.readouterr().out) == written


def test_resume_preserves_earlier_runs_and_the_compact_number_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "PARTS", {"streams": ending(lambda report: None)})
    before = soak(tmp_path, monkeypatch, "--faults", "4")[1]["runs"]
    assert soak(tmp_path, monkeypatch, "--faults", "4", "--resume")[1]["runs"][:1] == before
    assert '"s": [ 1.0 ]' in (tmp_path / "soak-streams.json").read_text()


def soak(out: Path, monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[int, dict[str, Any]]:
    """Run the command with one part; return its exit code and document."""
    monkeypatch.setattr(sys, "argv", ["soak", "--parts", "streams", "--short", "--out", str(out), *words])
    with pytest.raises(SystemExit) as ended:
        command.main()
    return int(ended.value.code or 0), json.loads((out / "soak-streams.json").read_text())


def test_resumed_runs_add_up_to_the_required_total(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "PARTS", {"streams": ending(lambda report: None)})
    done = [soak(tmp_path, monkeypatch, "--faults", "5", "--resume")[1] for _ in range(4)]
    assert [len(each["runs"]) for each in done] == [1, 2, 3, 3]
    assert [each["holds"] for each in done] == [False, False, True, True]
    assert done[-1]["wanted"] == done[-1]["total"]["faults"] == 5
    assert done[-1]["total"]["took"]["s"] == {"median": 2.0, "longest": 3.0}, "each run has its own seed"
    assert all(run["machine"]["commit"] and len(run["machine"]["load_before"]) == 3 for run in done[-1]["runs"])
    assert len(soak(tmp_path, monkeypatch, "--faults", "5")[1]["runs"]) == 1


def test_failed_check_of_one_run_fails_the_total(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for how in (fails, lambda report: None):
        monkeypatch.setattr(command, "PARTS", {"streams": ending(how)})
        ended, written = soak(tmp_path, monkeypatch, "--faults", "4", "--resume")
    assert (ended, written["holds"], written["total"]["faults"]) == (1, False, 4)


def test_resume_option_requires_out(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["soak", "--resume"])
    with pytest.raises(SystemExit, match="2"):
        command.main()
    assert "--resume requires --out" in capsys.readouterr().err


@pytest.mark.slow
def test_findings_are_merged_by_name() -> None:
    two = [{"n": 1, "s": [1.0], "in": {"slowest_s": 3}, "only": {"x": 1}}, {"n": 2, "s": [4.0], "in": {"slowest_s": 9}}]
    assert added(two) == {"n": 3, "s": [1.0, 4.0], "in": {"slowest_s": 9}, "only": {"x": 1}}
    assert spread({"s": [1.0, 2.0, 9.0], "none": [], "said": ["x"] * 99, "n": 3}) == {
        "s": {"median": 2.0, "longest": 9.0}, "none": [], "said": ["x"] * 10, "n": 3,
    }  # fmt: skip


@pytest.mark.slow
def test_progress_is_reported_once_a_minute(capsys, monkeypatch) -> None:
    from benchmarks.soak import progress

    clock = iter([0.0, 30.0, 60.0, 61.0, 120.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(clock))
    told = progress.Progress("part")
    for done in (0.25, 0.5, 0.5, 1.0):
        told.tell(done, "so far")
    lines = [line.split(" ", 1)[1] for line in capsys.readouterr().err.splitlines()]
    assert lines == [
        "part: begins", "part: 50%, 1.0 minutes left, so far", "part: 100%, 0.0 minutes left, so far",
    ]  # fmt: skip


@pytest.mark.triton
@pytest.mark.slow
def test_killed_server_is_restarted_and_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TRTSPEC_STATE", "TRTSPEC_CACHE"):
        monkeypatch.setenv(name, str(tmp_path))  # set by the server's supervisor, and restored here
    skip_without_a_server()
    asked = {"text_input": "hé", "max_tokens": 1}
    models = make_echo_artifact(tmp_path / "echo") / "model_repository"
    with kept(tmp_path / "kept", models) as server:
        assert server.served.client.generate(asked)["text_output"] == "hé"
        assert server.restarts() == []
        [process] = servers_of(models)
        begun = time.monotonic()
        os.kill(process, signal.SIGKILL)
        assert wait_until(server.restarts, BOUND_S)
        assert server.is_back()
        [restart] = server.restarts()
        assert server.served.client.generate(asked)["text_output"] == "hé"
    assert restart.reason == "the server exited with status -9"
    assert begun < restart.at < restart.back < time.monotonic()
    assert wait_until(lambda: not server.served.client.is_ready(), 10)


def servers_of(models: Path) -> list[int]:
    """Return the servers of these models; a test worker may run several servers."""
    every = (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [pid for pid in every if name_of(pid) == SERVER and str(models) in words_of(pid)]


def skip_without_a_server() -> None:
    try:
        find_server()
    except DeployError as error:
        pytest.skip(str(error))


@pytest.mark.triton
@pytest.mark.slow
@pytest.mark.parametrize("part", ["streams", "draft", "rollouts"])
def test_short_soak_passes_its_checks(part: str, tmp_path: Path) -> None:
    """Speed and memory limits are not checked on a busy machine."""
    skip_without_a_server()
    every_kind = ["--rollouts", str(len(KINDS))]
    words = [sys.executable, "-m", "benchmarks.soak", "--short", "--parts", part, "--out", str(tmp_path), *every_kind]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=BOUND_S)
    assert (tmp_path / f"soak-{part}.json").is_file(), done.stderr
    document = json.loads((tmp_path / f"soak-{part}.json").read_text())
    [found] = document["runs"]
    assert found["complete"], done.stderr
    of_quiet_machines = {"memory_flat", "rolled_back_in_time"}
    of_quiet_machines |= {f"16_streams_4_times_one_{arm}" for arm in ("with_drafts", "without")}
    assert {name for name, holds in found["checks"].items() if not holds} <= of_quiet_machines, done.stdout
    assert done.returncode == (0 if document["holds"] else 1)
