# SPDX-License-Identifier: Apache-2.0
"""Failure detection from health samples, and restart delays; the test controls the clock."""

from __future__ import annotations

import pytest

from trtspec.deployment.health import (
    BUSY_S,
    SILENT_S,
    STOPPED_S,
    FailureDetector,
    HealthSample,
    PendingProbe,
    RestartPolicy,
)

STEP = 0.25


def verdicts(seconds: float, **seen: object) -> list[tuple[float, str]]:
    """Return the failure, and the time until it is detected, for constant samples."""
    judge = FailureDetector()
    times = [100 + STEP * number for number in range(int(seconds / STEP) + 1)]
    return [(time - 100, fault) for time in times if (fault := judge.fault(HealthSample(time, **seen)))]


def test_responsive_server_has_no_fault() -> None:
    assert verdicts(60, computes=True) == verdicts(60) == []


@pytest.mark.parametrize(
    ("seen", "after", "words"),
    [
        ({"ended": -9}, 0, "the server exited with status -9"),
        ({"died": ["tensorrt_llm"]}, 0, "the process of tensorrt_llm died"),
        ({"stopped": ["tensorrt_llm"]}, STOPPED_S, "the process of tensorrt_llm is stopped"),
        ({"stopped": ["tritonserver"], "waits_since": 100.0}, STOPPED_S, "the process of tritonserver is stopped"),
        (
            {"waits_since": 100.0},
            SILENT_S,
            "a request for one token has been unanswered for 3 s, and no thread is running",
        ),
        ({"refusals": 3, "said": "no"}, 0, "a request for one token failed 3 times: no"),
    ],
)
def test_fault_is_reported_in_time_with_its_cause(seen: dict[str, object], after: float, words: str) -> None:
    first, said = verdicts(5, **seen)[0]
    assert (first, said) == (after, words)


def test_busy_server_is_a_fault_only_after_the_busy_limit() -> None:
    assert verdicts(60, waits_since=100.0, computes=True) == []
    [first, *_] = verdicts(BUSY_S + 1, waits_since=100.0, computes=True)
    assert first == (BUSY_S, "a request for one token has been unanswered for 600 s")


def full_since(progress: list[int | None]) -> list[float | None]:
    """Return the start of the unanswered period after each probe (one per second, all rejected with a full queue)."""
    waiting, found = PendingProbe(), []
    for second, done in enumerate(progress):
        waiting.record_request(100.0 + second)
        waiting.refused_as_full(100.5 + second, done)
        found.append(waiting.since)
    return found


def test_queue_full_reply_without_progress_does_not_reset_the_wait() -> None:
    assert full_since([7, 7, 7, 7]) == [100.0] * 4
    assert full_since([None, None, 7, None, 7]) == [100.0] * 5, "no evidence of progress"


def test_queue_full_reply_with_progress_resets_the_wait() -> None:
    assert full_since([7, 8, 8, None, 9, 9]) == [100.0, 101.5, 101.5, 101.5, 104.5, 104.5]


@pytest.mark.parametrize(("computes", "after"), [(False, SILENT_S), (True, BUSY_S)])
def test_full_queue_without_progress_is_a_fault(computes: bool, after: float) -> None:
    judge, waiting = FailureDetector(), PendingProbe()
    found = []
    for number in range(int((BUSY_S + 10) / STEP)):
        now = 100 + number * STEP
        if number % 4 == 0:
            waiting.record_request(now)
            waiting.refused_as_full(now, 7)
        found.append((now - 100, judge.fault(HealthSample(now, None, (), (), waiting.since, computes, is_full=True))))
    first, said = next(each for each in found if each[1])
    assert first == after
    assert said == (
        f"a request for one token found a full queue without progress for {after:.0f} s"
        + ("" if computes else ", and no thread is running")
    )


def test_answer_ends_the_pending_wait() -> None:
    waiting = PendingProbe()
    waiting.record_request(1.0)
    waiting.refused_as_full(1.0, 7)
    assert waiting.is_full
    waiting.record_answer()
    assert (waiting.since, waiting.is_full) == (None, False)
    waiting.record_request(5.0)
    waiting.refused_as_full(5.5, 9)
    assert waiting.since == 5.0, "progress before the answer does not count"


def test_process_paused_briefly_by_a_debugger_is_not_a_fault() -> None:
    judge = FailureDetector()
    for number in range(40):
        assert not judge.fault(HealthSample(number * STEP, stopped=["tensorrt_llm"] if number % 4 else []))


def test_shorter_stopped_limit_reports_the_fault_earlier() -> None:
    judge = FailureDetector(stopped_s=1.0)
    looks = [judge.fault(HealthSample(number * STEP, stopped=["tensorrt_llm"])) for number in range(5)]
    assert looks == ["", "", "", "", "the process of tensorrt_llm is stopped"]


def test_two_failed_requests_are_not_a_fault() -> None:
    assert verdicts(60, refusals=2, said="no") == []


def test_restart_policy_backs_off_exponentially_then_gives_up() -> None:
    restarts = RestartPolicy()
    assert [restarts.delay(now) for now in range(7)] == [0.0, 1.0, 2.0, 4.0, 8.0, None, None]


def test_restart_policy_never_gives_up_after_a_successful_start() -> None:
    restarts = RestartPolicy(came_up=True)
    delays = [restarts.delay(now) for now in range(2000)]
    assert delays[:8] == [0.0, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert set(delays[8:]) == {30.0}


def test_restart_policy_ignores_failures_before_its_window() -> None:
    restarts = RestartPolicy(within_s=100)
    assert [restarts.delay(now) for now in range(0, 2000, 200)] == [0.0] * 10
    assert [restarts.delay(3000.0 + now) for now in range(3)] == [0.0, 1.0, 2.0]


def test_restart_delay_is_capped() -> None:
    restarts = RestartPolicy(at_most=9, longest_s=5)
    assert [restarts.delay(now) for now in range(6)] == [0.0, 1.0, 2.0, 4.0, 5.0, 5.0]
