# SPDX-License-Identifier: Apache-2.0
"""A draft process is killed, stopped or slowed on a real tritonserver, and every text is still complete.

A process that exits or is stopped while it holds a lock in the memory shared with its server crashes the server
(tests/deployment/test_supervisor.py does so deliberately). The test cannot choose a moment without a lock, so it
retries.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Semaphore

import pytest

from tests._support.tiny import greedy, reference_model
from tests.serving.triton.serving import Served, serving
from tests.serving.triton.streams import generate_stream
from tests.serving.triton.two_models import DRAFT_LEN, TARGET, draft_process, lines, make_pair, metric, reload
from trtspec.checkpoints.tokenizer import Tokenizer
from trtspec.core.processes import is_alive, start_time, wait_until
from trtspec.serving.triton.client import Client

pytestmark = [pytest.mark.triton, pytest.mark.slow]

TOKENS, STREAMS = 80, 6
SHORT = 8  # tokens of a text that only checks whether drafting works again
DEADLINE_S = 60.0  # limit for a whole text, including a few one-second timeouts of the draft
HEALS_S = 120.0
LOCK_OF_A_DEAD_PROCESS, ATTEMPTS = "boost::interprocess::lock_exception", 4
PROMPTS = lines(STREAMS)


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> Path:
    return make_pair(tmp_path_factory.mktemp("falling-back"))


def on_a_server(pair: Path, case: Callable[[Served], None]) -> None:
    """Run a case on a dedicated server, and retry on another if a lock crashed the server."""
    for left in reversed(range(ATTEMPTS)):
        log = None
        try:
            with serving(pair, pair / "models") as served:
                log = served.log
                case(replace(served, client=replace(served.client, timeout_s=DEADLINE_S)))
            return
        except Exception:
            if not (left and log and LOCK_OF_A_DEAD_PROCESS in log.read_text(errors="replace")):
                raise


@pytest.fixture(scope="module")
def expected() -> list[str]:
    tokenizer, model = Tokenizer(TARGET), reference_model(TARGET)
    return [tokenizer.decode(greedy(model, tokenizer.encode(prompt), TOKENS)) for prompt in PROMPTS]


def ask(client: Client, prompt: str, tokens: int = TOKENS, begun: Semaphore | None = None) -> str:
    """Return a text; call `begun` with its first part."""
    asked = {"text_input": prompt, "max_tokens": tokens, "end_id": -1, "num_draft_tokens": DRAFT_LEN, "stream": True}
    parts = []
    for event in generate_stream(client, asked):
        if begun and not parts:
            begun.release()
        parts.append(event["text_output"])
    return "".join(parts)


def texts_while(client: Client, act: Sequence[tuple[int, int]]) -> list[str]:
    """Return the texts of concurrent streams, during which processes get signals."""
    with ThreadPoolExecutor(STREAMS) as pool:
        begun = Semaphore(0)
        running = [pool.submit(ask, client, prompt, begun=begun) for prompt in PROMPTS]
        assert all(begun.acquire(timeout=DEADLINE_S) for _ in running)
        for process, number in act:
            os.kill(process, number)
        return [future.result(DEADLINE_S) for future in running]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_streams_continue_without_the_draft_model_and_use_it_after_recovery(
    pair: Path, expected: list[str], number: int
) -> None:
    on_a_server(pair, lambda served: goes_on(served, pair, expected, number))


def goes_on(served: Served, pair: Path, expected: list[str], number: int) -> None:
    process = draft_process(pair)
    started = start_time(process)
    assert texts_while(served.client, [(process, number)]) == expected
    assert [ask(served.client, prompt) for prompt in PROMPTS] == expected
    assert wait_until(lambda: metric(served, "trtspec_breaker_open") == 1, HEALS_S)
    assert metric(served, "trtspec_fallbacks_total") > 0
    assert not is_alive(process, started), "a stopped process may hold locks that tritonserver waits for"
    reload(served)

    def heals() -> bool:
        assert expected[0].startswith(ask(served.client, PROMPTS[0], SHORT))
        return metric(served, "trtspec_breaker_open") == 0

    assert wait_until(heals, HEALS_S)
    drafted = metric(served, "trtspec_drafted_tokens_total")
    assert texts_while(served.client, []) == expected
    assert wait_until(lambda: metric(served, "trtspec_drafted_tokens_total") > drafted, HEALS_S)


def test_streams_continue_with_a_slow_draft_model(pair: Path, expected: list[str]) -> None:
    """The draft is stopped repeatedly for less than its deadline, so it is late or just in time."""
    on_a_server(pair, lambda served: slowed(served, pair, expected))


def slowed(served: Served, pair: Path, expected: list[str]) -> None:
    process = draft_process(pair)
    with ThreadPoolExecutor(STREAMS) as pool:
        running = [pool.submit(ask, served.client, prompt) for prompt in PROMPTS]
        while not all(future.done() for future in running):
            os.kill(process, signal.SIGSTOP)
            time.sleep(0.3)
            os.kill(process, signal.SIGCONT)
            time.sleep(0.1)
        assert [future.result() for future in running] == expected
