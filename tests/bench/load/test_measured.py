# SPDX-License-Identifier: Apache-2.0
"""Load benchmarks against a server with known timings."""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.bench.load.scripted import Script, Server, scripted, steady
from trtspec.bench.load.api import LoadSampling
from trtspec.bench.load.arrivals import Closed, Poisson
from trtspec.bench.load.client import Endpoint
from trtspec.bench.load.client import ServerAddress as Address
from trtspec.bench.load.rounds import LoadWorkload
from trtspec.bench.load.sweep import LoadPlan, Point, StopRule, measure
from trtspec.core.errors import DeployError
from trtspec.engine.prompts.prompt import Prompt

PROMPTS = [Prompt(f"prompt {number}", f"p{number}", "code" if number % 2 else "chat") for number in range(10)]
pytestmark = pytest.mark.slow  # the server responds in real time
LATE_MS = 15.0  # allowed delay of a chunk on a busy machine
ONCE = StopRule(least_rounds=1, most_rounds=1)


def planned(server: Server, *loads: Any, effort: StopRule = ONCE, **address: Any) -> LoadPlan:
    return LoadPlan(
        Address(server.url, **address),
        None,
        LoadWorkload(PROMPTS, LoadSampling(8), "test"),
        loads or [Closed(2)],
        effort,
        20.0,
    )


def swept(plan: LoadPlan, raw: Any = None) -> tuple[Mapping[str, Endpoint], Sequence[Point]]:
    found = measure(plan, raw)
    assert not found.ended_by
    return found.arms, found.points


def drafts_or_not(body: dict[str, Any]) -> Script:
    """Respond with 8 tokens: in 3 chunks with drafts, in 8 without."""
    if body.get("num_draft_tokens") == 0:
        return steady(0.02, 0.01, 8, drafts=(0, 0, 7))
    return Script([(0.02, 1), (0.01, 4), (0.01, 3)], drafts=(10, 5, 2))


def noted_e2e_ms(server: Server, *, alone: bool) -> list[float]:
    """Return the end-to-end times that the server recorded for the measured requests of an arm."""
    of_arm = [number for number in server.of_load() if ("num_draft_tokens" in server.asked[number]) == alone]
    measured = [server.sent[number] for number in of_arm[16:]]  # after the warm-up
    return [1000 * (times[-1] - times[0]) for times in measured]


@pytest.mark.alone
@pytest.mark.parametrize("api", ["completions", "chat", "triton"])
def test_metrics_match_the_server_schedule_with_every_api(api: str) -> None:
    """Times are never shorter than the schedule, and at most slightly longer than the server recorded."""
    with scripted(drafts_or_not) as server:
        arms, (point,) = swept(planned(server, Closed(2), api=api))
    assert set(arms) == {"served", "baseline"}
    for name, e2e_ms, gaps in (("served", 40, 2), ("baseline", 90, 7)):
        (one,) = point.rounds[name]
        assert len(one.answered) == point.requests == 16
        for sample in one.answered:
            assert (sample.output_tokens, sample.prompt_tokens, sample.is_counted) == (8, 3, True)
            assert len(sample.itl_ms) == gaps
            assert sample.ttft_ms >= 20
            assert sample.e2e_ms >= e2e_ms
        late = np.sort([each.e2e_ms for each in one.answered]) - np.sort(noted_e2e_ms(server, alone=name == "baseline"))
        assert -1 < np.median(late) < LATE_MS
    served = point.rounds["served"][0].answered[0]
    assert (served.drafted, served.accepted, served.steps) == (10, 5, 2)


@pytest.mark.alone
def test_chunk_times_match_the_server_send_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """For each request, the client's times match the times that the server recorded in the same process."""
    with scripted(lambda body: steady(0.03, 0.012, 6), ours=False) as server:
        _, (point,) = swept(planned(server, Closed(1)))
        noted = [server.sent[number] for number in server.of_load()[point.requests :]]
    samples = point.rounds["served"][0].samples
    assert len(noted) == len(samples)
    late = []
    for times, sample in zip(noted, samples, strict=True):
        late += list(1000 * (np.array(sample.chunks_s) - (np.array(times[1:]) - times[0])))
    assert min(late) > -1
    assert np.median(late) < 5


def test_closed_loop_runs_at_its_concurrency_and_sends_all_prompts_to_both_arms() -> None:
    with scripted(lambda body: steady(0.02, 0.002, 3)) as server:
        effort = StopRule(least_rounds=2, most_rounds=2, requests=10)
        rounds = swept(planned(server, Closed(4), effort=effort))[1][0].rounds
        bodies = [server.asked[number] for number in server.of_load()]
    assert server.most_at_once == 4
    assert [each.places for arm in rounds.values() for each in arm] == [4] * 4
    assert len(bodies) == 10 * 2 * 3  # two arms, each with a warm-up and two rounds
    of_arm: dict[bool, list[str]] = {True: [], False: []}
    for body in bodies[20:]:
        of_arm["num_draft_tokens" in body].append(body["prompt"])
    for first in (0, 10):
        both = [sorted(each[first : first + 10]) for each in of_arm.values()]
        assert both[0] == both[1] == sorted(prompt.text for prompt in PROMPTS)


def test_arms_alternate_which_runs_first() -> None:
    with scripted(lambda body: Script()) as server:
        measure(planned(server, Closed(4), effort=StopRule(least_rounds=4, most_rounds=4, requests=4)))
        alone = ["num_draft_tokens" in server.asked[number] for number in server.of_load()[8:]]
    first = [alone[at] for at in range(0, 32, 8)]
    assert first in ([True, False, True, False], [False, True, False, True])


@pytest.mark.alone
def test_open_loop_latency_counts_from_the_due_time_on_a_slow_server() -> None:
    """The queue grows with one response of 40 ms at a time and 50 requests per second."""
    load = Poisson(50.0)
    with scripted(lambda body: Script([(0.04, 1)]), ours=False, at_once=1) as server:
        _, (point,) = swept(planned(server, load, effort=replace(ONCE, requests=40)))
    (one,) = point.rounds["served"]
    arrivals = load.arrivals(point.requests, LoadWorkload(PROMPTS, LoadSampling(8), "test").arrivals_seed(0))
    noted = [server.sent[number] for number in server.of_load()[point.requests :]]
    expected = [1000 * (times[-1] - noted[0][0] - due) for times, due in zip(noted, arrivals, strict=True)]
    queued = [0.04 * (place + 1) - due for place, due in enumerate(arrivals)]  # minimum with one slot
    assert [sample.due_s for sample in one.samples] == pytest.approx(arrivals, abs=0.001)
    measured = np.array([sample.e2e_ms for sample in one.samples])
    assert all(measured >= 1000 * np.array(queued) - 1)
    assert -1 < np.median(np.sort(measured) - np.sort(expected)) < LATE_MS
    assert one.mean_e2e_ms > 200  # a closed loop would hide this (coordinated omission)
    assert one.e2e_growth > 1.5


def test_rounds_stop_at_a_narrow_interval_the_maximum_or_the_duration() -> None:
    with scripted(drafts_or_not) as server:
        steadily = StopRule(least_rounds=3, most_rounds=9, interval=1e9, requests=4)
        _, (point,) = swept(planned(server, Closed(4), effort=steadily))
        assert len(point.rounds["served"]) == 3
        never = StopRule(least_rounds=1, most_rounds=5, interval=1e-9, requests=4)
        _, (point,) = swept(planned(server, Closed(4), effort=never))
        assert len(point.rounds["served"]) == len(point.rounds["baseline"]) == 5
        briefly = StopRule(least_rounds=1, most_rounds=99, interval=None, duration_s=0.3, requests=4)
        _, (point,) = swept(planned(server, Closed(4), effort=briefly))
        assert 1 <= len(point.rounds["served"]) < 10


@pytest.mark.alone
def test_sweep_ends_at_the_crossover() -> None:
    """Speculation is faster at concurrency 1 and slower at 4, so 8 is not measured."""

    def script(body: dict[str, Any]) -> Script:
        slow = server.most_at_once > 3
        return steady(0.005, 0.02 if "num_draft_tokens" in body else 0.09 if slow else 0.001, 5)

    with scripted(script) as server:
        effort = StopRule(least_rounds=5, most_rounds=5, requests=6, until_crossover=True)
        _, points = swept(planned(server, Closed(1), Closed(4), Closed(8), effort=effort))
    assert [point.load for point in points] == [Closed(1), Closed(4)]
    assert points[0].speedup is not None
    assert points[0].speedup.shows == 1
    assert points[1].speedup is not None
    assert points[1].speedup.shows == -1


@pytest.mark.alone
def test_baseline_can_be_another_server() -> None:
    with (
        scripted(lambda body: steady(0.005, 0.002, 8), ours=False) as fast,
        scripted(lambda body: steady(0.005, 0.01, 8), ours=False) as slow,
    ):
        plan = planned(fast, Closed(2), effort=StopRule(3, 3))
        arms, (point,) = swept(LoadPlan(plan.served, Address(slow.url), plan.workload, plan.loads, plan.effort))
        assert arms["baseline"].url == slow.url
        assert not any("num_draft_tokens" in body for body in slow.asked)
    assert point.speedup is not None
    assert 2 < point.speedup.value < 5


def test_server_that_ignores_num_draft_tokens_has_no_baseline() -> None:
    """The server accepts the field but ignores it, so both arms would be identical."""
    with scripted(drafts_or_not, ours=False) as server:
        arms, (point,) = swept(planned(server))
    assert set(arms) == {"served"}
    assert point.speedup is None


def test_api_is_detected_by_probing_the_server() -> None:
    with scripted(drafts_or_not) as openai, scripted(drafts_or_not, models=()) as triton:
        assert swept(planned(openai))[0]["served"].api_name == "completions"
        assert swept(planned(openai))[0]["served"].model == "scripted"
        assert swept(planned(triton))[0]["served"].api_name == "triton"


def test_raw_samples_match_the_summary() -> None:
    raw = io.StringIO()
    with scripted(drafts_or_not) as server:
        _, (point,) = swept(planned(server), raw)
    lines = [json.loads(line) for line in raw.getvalue().splitlines()]
    assert len(lines) == 32
    for name in ("served", "baseline"):
        of_arm = [line for line in lines if line["arm"] == name]
        assert [line["request"] for line in of_arm] == list(range(16))
        assert [line["e2e_ms"] for line in of_arm] == pytest.approx(
            [sample.e2e_ms for sample in point.rounds[name][0].samples], abs=1e-3
        )
    assert {line["draft_tokens"] for line in lines} == {0, 10}


def test_counters_cover_only_the_measured_rounds() -> None:
    made = [0]

    def script(body: dict[str, Any]) -> Script:
        made[0] += 1
        return Script([(0.0, 4)])

    def metrics() -> str:
        counts = {"drafts": 1, "draft_tokens": 4, "accepted_tokens": 3}
        return "".join(f"vllm:spec_decode_num_{name}_total {made[0] * n}\n" for name, n in counts.items())

    with scripted(script, ours=False, metrics=metrics) as server:
        _, (point,) = swept(planned(server))
    counted = point.counters["served"]
    assert (counted.steps, counted.drafted, counted.accepted) == (16, 64, 48)


def test_api_key_is_sent_but_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_KEY", "sk-secret")
    with scripted(drafts_or_not, key="sk-secret") as server:
        arms, _ = swept(planned(server, key_variable="MY_KEY"))
        assert "sk-secret" not in repr(arms)
        with pytest.raises(DeployError, match="no such key"):
            measure(planned(server))


BROKEN = {
    "no JSON": ([b"data: {\n\n"], "not a JSON object"),
    "a list": ([b"data: []\n\n"], "not a JSON object"),
    "another API": ([b'data: {"choices": [7]}\n\n'], "unexpected event for this API"),
    "a text that is a number": ([b'data: {"choices": [{"text": 7}]}\n\n'], "unexpected event for this API"),
    "an error": ([b'data: {"error": {"message": "out of memory"}}\n\n'], "the server reported: out of memory"),
    "an end too early": ([b'data: {"choices": [{"text": "x"}]}\n\n'], "the stream ended early"),
    "nothing": ([b"data: [DONE]\n\n"], "the response does not contain text"),
    "an endless line": ([b"data: " + b"x" * (5 << 20)], "an event exceeds"),
    "a deep one": ([b"data: " + b"[" * 100_000 + b"\n\n"], "not a JSON object"),
    "half a pair": ([b'data: {"choices": [{"text": "\\ud800"}]}\n\ndata: [DONE]\n\n'], ""),
}


@pytest.mark.parametrize("kind", BROKEN)
def test_malformed_response_is_an_error_of_its_request(kind: str) -> None:
    """Every second response is broken; the others are still measured."""
    raw, said = BROKEN[kind]

    def script(body: dict[str, Any]) -> Script:
        return Script(raw=raw) if body["prompt"].endswith(("1", "3", "5", "7", "9")) else steady(0.001, 0.001, 2)

    with scripted(script, ours=False) as server:
        _, (point,) = swept(planned(server, api="completions"))
    errors = {sample.error for sample in point.rounds["served"][0].samples}
    assert "" in errors
    assert all(said in error for error in errors - {""})
    assert len(errors) == (2 if said else 1)


def test_unavailable_server_or_invalid_address_ends_the_run() -> None:
    with (
        scripted(lambda body: Script(status=503, refusal="too much at once"), ours=False) as server,
        pytest.raises(DeployError, match="the server returned 503: too much at once"),
    ):
        measure(planned(server))
    with pytest.raises(DeployError, match="cannot be reached"):
        measure(planned(server))
    for address in (
        "ftp://127.0.0.1:1",
        "http://",
        "http://me:secret@127.0.0.1:1",
        "http://127.0.0.1:x",
        "http://a/?b",
    ):
        with pytest.raises(DeployError, match="is not a server's address"):
            measure(planned(Server(lambda body: Script(), url=address)))


def test_incomplete_response_times_out() -> None:
    hangs = [False]

    def script(body: dict[str, Any]) -> Script:
        hangs[0] = "prompt 3" in body["prompt"]
        return Script([(0.0, 1), (30.0, 1)]) if hangs[0] else Script([(0.001, 2)])

    with scripted(script, ours=False) as server:
        plan = planned(server, Closed(16))
        _, (point,) = swept(LoadPlan(plan.served, None, plan.workload, plan.loads, plan.effort, timeout_s=0.5))
    failed = [sample.error for sample in point.rounds["served"][0].samples if not sample.ok]
    assert failed
    assert set(failed) == {"no complete response within 0.5 s"}
