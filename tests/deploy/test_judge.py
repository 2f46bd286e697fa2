# SPDX-License-Identifier: Apache-2.0
"""What is wrong with a server by what was seen of it, and when it is started again; the clock is the test's."""

from __future__ import annotations

import pytest

from trtspec.deploy.judge import BUSY_S, SILENT_S, STOPPED_S, Judge, Look, Restarts

STEP = 0.25


def verdicts(seconds: float, **seen: object) -> list[tuple[float, str]]:
    """Return what is said, and after how long, of looks that all see the same."""
    judge = Judge()
    times = [100 + STEP * number for number in range(int(seconds / STEP) + 1)]
    return [(time - 100, fault) for time in times if (fault := judge.fault(Look(time, **seen)))]


def test_a_server_that_answers_is_well() -> None:
    assert verdicts(60, computes=True) == verdicts(60) == []


@pytest.mark.parametrize(
    ("seen", "after", "words"),
    [
        ({"ended": -9}, 0, "the server ended by itself with status -9"),
        ({"died": ["tensorrt_llm"]}, 0, "the process of tensorrt_llm died"),
        ({"stopped": ["tensorrt_llm"]}, STOPPED_S, "the process of tensorrt_llm is stopped"),
        ({"stopped": ["tritonserver"], "waits_since": 100.0}, STOPPED_S, "the process of tritonserver is stopped"),
        ({"waits_since": 100.0}, SILENT_S, "a request for one token has no answer since 3 s, and nothing runs"),
        ({"refusals": 3, "said": "no"}, 0, "a request for one token was refused 3 times: no"),
    ],
)
def test_a_fault_is_seen_in_time_and_named(seen: dict[str, object], after: float, words: str) -> None:
    first, said = verdicts(5, **seen)[0]
    assert (first, said) == (after, words)


def test_a_server_with_much_to_do_may_answer_late_but_not_never() -> None:
    assert verdicts(60, waits_since=100.0, computes=True) == []
    [first, *_] = verdicts(BUSY_S + 1, waits_since=100.0, computes=True)
    assert first == (BUSY_S, "a request for one token has no answer since 600 s")


def test_a_process_that_was_only_looked_at_by_a_debugger_goes_on() -> None:
    judge = Judge()
    for number in range(40):
        assert not judge.fault(Look(number * STEP, stopped=["tensorrt_llm"] if number % 4 else []))


def test_one_that_nobody_depends_on_may_be_stopped_for_less() -> None:
    judge = Judge(stopped_s=1.0)
    looks = [judge.fault(Look(number * STEP, stopped=["tensorrt_llm"])) for number in range(5)]
    assert looks == ["", "", "", "", "the process of tensorrt_llm is stopped"]


def test_two_refusals_are_no_fault() -> None:
    assert verdicts(60, refusals=2, said="no") == []


def test_a_server_is_started_again_later_each_time_and_in_the_end_no_more() -> None:
    restarts = Restarts()
    assert [restarts.delay(now) for now in range(7)] == [0.0, 1.0, 2.0, 4.0, 8.0, None, None]


def test_what_failed_long_ago_is_forgotten() -> None:
    restarts = Restarts(within_s=100)
    assert [restarts.delay(now) for now in range(0, 2000, 200)] == [0.0] * 10
    assert [restarts.delay(3000.0 + now) for now in range(3)] == [0.0, 1.0, 2.0]


def test_no_delay_is_longer_than_the_longest() -> None:
    restarts = Restarts(at_most=9, longest_s=5)
    assert [restarts.delay(now) for now in range(6)] == [0.0, 1.0, 2.0, 4.0, 5.0, 5.0]
