# SPDX-License-Identifier: Apache-2.0
"""The circuit breaker, with a simulated clock."""

from __future__ import annotations

import threading

from trtspec.engine.generation.circuit_breaker import FAILURES, LONGEST_REST_S, REST_S, CircuitBreaker


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def opened(clock: Clock) -> CircuitBreaker:
    breaker = CircuitBreaker(now=clock)
    for _ in range(FAILURES):
        assert breaker.allows()
        breaker.failed()
    return breaker


def test_breaker_opens_only_after_consecutive_failures() -> None:
    breaker = CircuitBreaker(now=Clock())
    for _ in range(5):
        for _ in range(FAILURES - 1):
            breaker.failed()
        assert breaker.allows()
        breaker.succeeded()
    assert not breaker.is_open
    assert opened(Clock()).is_open


def test_breaker_allows_one_trial_after_the_rest_and_closes_on_success() -> None:
    clock = Clock()
    breaker = opened(clock)
    assert not breaker.allows()
    clock.now += REST_S
    assert [breaker.allows() for _ in range(3)] == [True, False, False]
    breaker.succeeded()
    assert not breaker.is_open
    assert all(breaker.allows() for _ in range(3))


def test_rest_doubles_after_each_failed_trial_up_to_a_limit() -> None:
    clock = Clock()
    breaker = opened(clock)
    rests = []
    for _ in range(12):
        begun = clock.now
        while not breaker.allows():
            clock.now += REST_S / 2
        rests.append(clock.now - begun)
        breaker.failed()
    assert rests[:4] == [REST_S, 2 * REST_S, 4 * REST_S, 8 * REST_S]
    assert max(rests) == rests[-1] == LONGEST_REST_S


def test_trial_without_result_is_followed_by_another_after_the_rest() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now += REST_S
    assert breaker.allows()
    clock.now += REST_S
    assert breaker.allows()


def test_concurrent_threads_get_only_one_trial() -> None:
    clock = Clock()
    breaker = opened(clock)
    clock.now += REST_S
    let_through, barrier = [], threading.Barrier(8)

    def ask() -> None:
        barrier.wait(10)
        if breaker.allows():
            let_through.append(1)

    threads = [threading.Thread(target=ask) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert let_through == [1]
